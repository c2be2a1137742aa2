// Command space is SPACE: the client of its API, and the server's processes.
package main

import (
	"context"
	"os"
)

// version is set by the linker: -X main.version=…
var version = "v0.0.0-dev"

func main() {
	os.Exit(run(context.Background(), os.Args[1:], std{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
