// Command flood writes more to the console than anyone should keep, with bytes that no terminal should see.
package main

import (
	"bytes"
	"os"
)

func main() {
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		os.Exit(1)
	}
	line := []byte("\x1b[2J\x1b]0;owned\x07\xff\xfe junk \x00 of the guest\r\n")
	if _, err := console.Write(bytes.Repeat(line, 96<<10/len(line))); err != nil {
		os.Exit(2)
	}
}
