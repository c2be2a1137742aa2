// Command count counts on the console until it is ended.
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		os.Exit(1)
	}
	for i := 1; ; i++ {
		if _, err := fmt.Fprintf(console, "tick %d tock\n", i); err != nil {
			os.Exit(2)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
