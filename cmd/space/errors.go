package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Exit codes of space itself; exec has those of the command.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitNotStarted  = 125 // the command could not be started, like env(1)
	exitNotAllowed  = 126
	exitNoCommand   = 127
	exitSignal      = 128 // and the number of the signal
	exitInterrupted = 130
)

// usageError is a command line that makes no sense.
type usageError struct {
	err     error
	command string // whose help says more
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitStatus ends space with this code; what there was to say has been said.
type exitStatus int

func (e exitStatus) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// report prints what went wrong and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		code := 0
		for _, e := range joined.Unwrap() {
			code = max(code, report(w, e))
		}
		return code
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(w, "space: %s — see %s --help\n", plain(err.Error()), cmp.Or(usage.command, "space"))
		return exitUsage
	}
	fmt.Fprintf(w, "space: %s\n", describe(err))
	return exitFailure
}

// asCommands writes a remedy that speaks of the API as the commands that do the same.
func asCommands(remedy string) string {
	remedy = waitRoute.ReplaceAllString(remedy, "space op wait $1")
	return strings.NewReplacer("GET /v1/sandboxes/{id}", "space show", "GET /v1/sandboxes lists", "space ls lists",
		"(create_parents=true)", "(--parents)").Replace(remedy)
}

var waitRoute = regexp.MustCompile(`GET /v1/operations/([a-z0-9_]+)\?wait=[0-9]+s`)

// describe puts an error into one line: message (cause) — remedy.
func describe(err error) string {
	message, cause, remedy := err.Error(), "", ""
	if e, ok := errors.AsType[*client.Error](err); ok {
		message, cause, remedy = e.Message, e.Cause, asCommands(e.Remedy)
		if e.Code == "unauthenticated" { // the server speaks of headers
			remedy = "set SPACE_API_KEY, or run it as a user who may read admin.key in the data directory (--data-dir)"
		}
	} else if e, ok := errors.AsType[*sandbox.Error](err); ok {
		message, cause, remedy = e.Message, e.Cause, e.Remedy
		if cause == "" && e.Err != nil && !strings.Contains(message, e.Err.Error()) {
			cause = e.Err.Error()
		}
	} else if e, ok := errors.AsType[*url.Error](err); ok {
		message, cause, remedy = "SPACE does not answer", e.Err.Error(), "is space up running? SPACE_URL and --url say where to look"
		if u, perr := url.Parse(e.URL); perr != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			message, remedy = "this is no address of an API", "set SPACE_URL or --url to one such as http://127.0.0.1:7070"
		}
	}
	if cause != "" {
		message += " (" + cause + ")"
	}
	if remedy != "" {
		message += " — " + remedy
	}
	return plain(message)
}
