package main

import (
	"fmt"
	"io"
	"time"
)

// progressEvery is how often the line is written anew.
const progressEvery = 200 * time.Millisecond

// progress counts bytes and shows them on a terminal; elsewhere it shows nothing. It is an io.Writer that never fails.
type progress struct {
	w     io.Writer // nil when nothing is shown
	name  string
	total int64 // 0 or less when unknown
	done  int64
	shown time.Time
}

func newProgress(w io.Writer, name string, total int64) *progress {
	p := &progress{name: name, total: total, shown: time.Now()}
	if onTerminal(w) {
		p.w = w
	}
	return p
}

func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if now := time.Now(); p.w != nil && now.Sub(p.shown) >= progressEvery {
		p.shown = now
		fmt.Fprint(p.w, clearLine, p.line())
	}
	return len(b), nil
}

func (p *progress) line() string {
	if p.total > 0 {
		return fmt.Sprintf("%s: %.1f of %.1f MiB, %d %%", plain(p.name), float64(p.done)/(1<<20), float64(p.total)/(1<<20), 100*p.done/p.total)
	}
	return fmt.Sprintf("%s: %.1f MiB", plain(p.name), float64(p.done)/(1<<20))
}

// end takes the line away.
func (p *progress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, clearLine)
	}
}
