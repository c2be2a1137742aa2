package main

import (
	"fmt"
	"sync/atomic"

	"github.com/space-sandbox/space/client"
)

// pauseNote says on the screen that the sandbox of an attachment stands still, and knows whether it does.
type pauseNote struct{ paused atomic.Bool }

// tell makes an attachment say so, in one line. On a raw terminal the cursor is anywhere, and a line ends with CR LF.
func (n *pauseNote) tell(c *cli, opts *client.AttachOptions, raw bool) {
	begin, end := "", "\n"
	if raw {
		begin, end = "\r\n", "\r\n"
	}
	opts.OnPaused = func(reason string) error {
		n.paused.Store(true)
		waiting := "paused; waiting for resume"
		if reason == "pool_full" {
			waiting = "paused, because the host's disk pool is full; waiting for room"
		}
		fmt.Fprintf(c.err, "%sspace: %s (Ctrl-C leaves)%s", begin, waiting, end)
		return nil
	}
	opts.OnResumed = func() { n.paused.Store(false) }
}
