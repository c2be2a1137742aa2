package agent

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// position says where a reader begins in one stream.
type position struct {
	stream int
	offset uint64
	end    bool // at the current end; offset is ignored
}

// piece is what a reader gets: data at an offset, or, when data is nil, the news that the bytes from offset to gapTo
// are gone.
type piece struct {
	stream int
	offset uint64
	data   []byte
	gapTo  uint64
}

// reader reads some streams of one log, each byte once and in order. One goroutine uses it. While it is open and
// reads, the writer waits for it.
type reader struct {
	log     *outputLog
	follow  bool
	cursors []cursor
	turn    int // the cursor that is asked first, so that no stream starves another
	// The spool's lock guards these two and the cursors.
	waiting  bool
	lastRead time.Time
}

type cursor struct {
	stream int
	pos    uint64
	stop   uint64 // without follow: the end when it was opened
}

// newReader opens a reader. Close it.
func (l *outputLog) newReader(positions []position, follow bool) (*reader, error) {
	r := &reader{log: l, follow: follow, lastRead: time.Now()}
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	for _, p := range positions {
		st := &l.streams[p.stream]
		c := cursor{stream: p.stream, pos: p.offset, stop: st.end}
		if p.end {
			c.pos = st.end
		}
		if c.pos > st.end {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the offset lies behind the end of the stream",
				Cause:  fmt.Sprintf("offset %d, end %d", c.pos, st.end),
				Remedy: "begin at an offset that the stream has reached"}
		}
		r.cursors = append(r.cursors, c)
	}
	l.readers[r] = struct{}{}
	return r, nil
}

// close lets the writer go on without this reader. Idempotent.
func (r *reader) close() {
	r.log.spool.mu.Lock()
	defer r.log.spool.mu.Unlock()
	delete(r.log.readers, r)
	r.log.spool.wakeWriters()
}

// needs returns from where on this reader needs a stream, whether it still is waited for and how long.
func (r *reader) needs(which int, now time.Time) (pos uint64, protected bool, until time.Time) {
	for _, c := range r.cursors {
		if c.stream != which || !r.follow && c.pos >= c.stop {
			continue
		}
		until = r.lastRead.Add(r.log.spool.patience)
		if r.waiting { // it was woken and is about to read
			until = now.Add(r.log.spool.patience)
		}
		return c.pos, now.Before(until), until
	}
	return 0, false, time.Time{}
}

// next waits for the next piece. io.EOF: everything has been read and nothing more will come.
func (r *reader) next(ctx context.Context) (piece, error) {
	l := r.log
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	for {
		if p, ok := r.take(); ok {
			r.lastRead = time.Now()
			l.spool.wakeWriters()
			return p, nil
		}
		if !r.follow || !l.ended.IsZero() {
			return piece{}, io.EOF
		}
		r.waiting = true
		ch := l.changed
		l.spool.mu.Unlock()
		var err error
		select {
		case <-ch:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		l.spool.mu.Lock()
		r.waiting, r.lastRead = false, time.Now()
		if err != nil {
			return piece{}, err
		}
	}
}

// take returns what is there for the first cursor that has something.
func (r *reader) take() (piece, bool) {
	for range r.cursors {
		c := &r.cursors[r.turn%len(r.cursors)]
		r.turn++
		st := &r.log.streams[c.stream]
		stop := st.end
		if !r.follow {
			stop = c.stop
		}
		if c.pos < min(st.start, stop) {
			p := piece{stream: c.stream, offset: c.pos, gapTo: min(st.start, stop)}
			c.pos = p.gapTo
			return p, true
		}
		if c.pos < stop {
			p := piece{stream: c.stream, offset: c.pos, data: st.at(c.pos, stop)}
			c.pos += uint64(len(p.data))
			return p, true
		}
	}
	return piece{}, false
}
