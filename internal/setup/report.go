package setup

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Reporter shows how setup goes on. Note may be called from other goroutines than the rest.
type Reporter interface {
	// Begin starts step number i (from 0) of n.
	Begin(i, n int, name string)
	// Note says what the step is doing now.
	Note(text string)
	// End ends the step; done says what was found or made.
	End(name, done string, took time.Duration, err error)
}

// NewReporter writes to w: one line that is drawn over and over on a terminal, else one plain line for each step.
func NewReporter(w io.Writer, terminal bool) Reporter {
	if terminal {
		return &barReporter{w: w}
	}
	return &lineReporter{w: w}
}

type lineReporter struct{ w io.Writer }

func (l *lineReporter) Begin(int, int, string) {}
func (l *lineReporter) Note(string)            {}
func (l *lineReporter) End(name, done string, took time.Duration, err error) {
	fmt.Fprintln(l.w, endLine(name, done, took, err))
}

func endLine(name, done string, took time.Duration, err error) string {
	if err != nil {
		return fmt.Sprintf("%-13s failed after %.1f s", name, took.Seconds())
	}
	return fmt.Sprintf("%-13s %6.1f s  %s", name, took.Seconds(), done)
}

type barReporter struct {
	w    io.Writer
	mu   sync.Mutex
	i, n int
	name string
}

// barWidth is the number of characters of the bar.
const barWidth = 18

func (b *barReporter) Begin(i, n int, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.i, b.n, b.name = i, n, name
	b.draw("")
}

func (b *barReporter) Note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draw(text)
}

func (b *barReporter) draw(note string) {
	full := barWidth * b.i / max(b.n, 1)
	bar := strings.Repeat("#", full) + strings.Repeat(".", barWidth-full)
	fmt.Fprintf(b.w, "\r\x1b[K[%s] %s: %.40s", bar, b.name, note)
}

func (b *barReporter) End(name, done string, took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.w, "\r\x1b[K%s\n", endLine(name, done, took, err))
}
