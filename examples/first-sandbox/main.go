// Command first-sandbox shows the whole life of a sandbox with the Go SDK: create one, wait until it is ready, make a
// command session, attach to it, take its result, then keep the sandbox, pause it or delete it.
//
//	go run ./examples/first-sandbox [flags] [-- COMMAND [ARG...]]
//
// What it has done stands in a directory: run.json, and the command's output in stdout and stderr. Ctrl-C, a crash or
// a lost connection lose nothing: the next run with the same directory goes on where the last one stopped, and nothing
// is done twice. first-sandbox.sh beside it does the same with curl.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/space-sandbox/space/client"
)

// exitInterrupted is what a shell expects of a program that Ctrl-C ended.
const exitInterrupted = 130

func main() {
	os.Exit(start(os.Args[1:]))
}

func start(args []string) int {
	r := &runner{in: bufio.NewReader(os.Stdin), out: os.Stdout, err: os.Stderr}
	flags := flag.NewFlagSet("first-sandbox", flag.ContinueOnError)
	flags.StringVar(&r.dir, "dir", "first-sandbox-run", "where this run is remembered")
	flags.StringVar(&r.template, "template", "base", "what the sandbox is made from")
	flags.StringVar(&r.cleanup, "cleanup", "", "keep, pause or delete the sandbox at the end (default: ask)")
	url := flags.String("url", envOr("SPACE_URL", client.DefaultURL), "where the API is (SPACE_URL); the key is taken from SPACE_API_KEY")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if r.cleanup != "" && r.cleanup != keep && r.cleanup != pause && r.cleanup != remove {
		fmt.Fprintln(os.Stderr, "first-sandbox: --cleanup is keep, pause or delete")
		return 2
	}
	r.argv = flags.Args()
	r.client = client.New(*url, os.Getenv("SPACE_API_KEY"))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := r.run(ctx)
	switch {
	case err == nil:
		return code
	case ctx.Err() != nil:
		fmt.Fprintf(os.Stderr, "\nfirst-sandbox: interrupted; run it again to go on (remembered in %s)\n", r.dir)
		return exitInterrupted
	}
	fmt.Fprintln(os.Stderr, "first-sandbox:", explain(err))
	return 1
}

// explain adds what helps to an error of the server.
func explain(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Remedy != "" {
		return err.Error() + " — " + e.Remedy
	}
	return err.Error()
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// ask reads keep, pause or delete; the end of input means keep, since only delete cannot be undone.
func ask(in *bufio.Reader, out io.Writer) string {
	for {
		fmt.Fprint(out, "Keep the sandbox, pause it or delete it? [keep/pause/delete] ")
		line, err := in.ReadString('\n')
		switch answer := strings.ToLower(strings.TrimSpace(line)); {
		case answer == keep || answer == "k":
			return keep
		case answer == pause || answer == "p":
			return pause
		case answer == remove || answer == "d":
			return remove
		case err != nil:
			fmt.Fprintln(out)
			return keep
		}
	}
}
