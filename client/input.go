package client

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

const (
	inputChunk  = 32<<10 - 1 // one frame, with its channel 32 KiB
	inputAhead  = 1 << 20    // written by the caller, not sent yet
	inputInSync = 1 << 20    // sent since the server was last known to have read everything
	// inputKept is how much of what was sent is kept, to be sent again after a broken connection. The server has at
	// most inputInSync and its own queue of 256 KiB that the process has not accepted.
	inputKept = 2 << 20
)

var errAttachmentEnded = errors.New("the attachment has ended")

// input is the standard input of an Attachment: a window of bytes, of which the first part was sent on the connection
// that is open now. After a broken connection the server says how many bytes the process has accepted, and sending goes
// on from there. That is exact as long as nobody else writes to the same session.
type input struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	started bool          // base is known
	base    uint64        // offset of buf[0] in the process's input
	buf     []byte
	sent    int // bytes of buf that were sent on this connection
	eof     bool
	stopped bool
	leaving bool       // the connection is to be closed after all that was written
	size    *apiv1.PTY // the terminal's, once it was set
	resized bool       // size is to be sent on this connection

	accepted uint64 // by the process, when the last connection was made
}

func (in *input) init() { in.changed = make(chan struct{}) }

func (in *input) notify() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// write queues p, waiting while too much is queued.
func (in *input) write(p []byte) (int, error) {
	total := 0
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		switch {
		case in.stopped:
			return total, errAttachmentEnded
		case in.eof:
			return total, errors.New("standard input is closed")
		case len(p) == 0:
			return total, nil
		}
		if room := inputAhead - (len(in.buf) - in.sent); room > 0 {
			n := min(room, len(p))
			in.buf = append(in.buf, p[:n]...)
			p, total = p[n:], total+n
			in.notify()
			continue
		}
		in.wait(nil)
	}
}

// wait gives the lock up until something changes or done is closed.
func (in *input) wait(done <-chan struct{}) {
	changed := in.changed
	in.mu.Unlock()
	defer in.mu.Lock()
	select {
	case <-changed:
	case <-done:
	}
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.eof = true
	in.notify()
}

func (in *input) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leaving = true
	in.notify()
}

// allSent reports whether the attachment is to be left and nothing waits to be sent before.
func (in *input) allSent() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.leaving && in.sent == len(in.buf) && !in.resized
}

func (in *input) hasLeft() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.leaving
}

// resize sets what the size of the terminal is to be, now and after a broken connection.
func (in *input) resize(size apiv1.PTY) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.size, in.resized = &size, true
	in.notify()
}

// nextSize returns a size that is to be sent, once.
func (in *input) nextSize() *apiv1.PTY {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.resized {
		return nil
	}
	in.resized = false
	return in.size
}

func (in *input) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = true
	in.notify()
}

// resume sets what is to be sent on a new connection, of a process that has accepted so many bytes.
func (in *input) resume(accepted uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.started {
		in.started, in.base = true, accepted
	}
	if accepted < in.base {
		return errors.New("a part of the standard input was lost with the connection")
	}
	in.accepted = accepted
	in.resized = in.size != nil
	in.sent = int(min(accepted-in.base, uint64(len(in.buf))))
	in.notify()
	return nil
}

func (in *input) acceptedBytes() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.accepted
}

// next returns what is to be sent next: a chunk, or nothing when there is a size or the attachment is to be left; eof once
// after all of it; ok is false when the connection has ended.
func (in *input) next(ctx context.Context, eofSent bool) (chunk []byte, eof, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for ctx.Err() == nil && !in.stopped {
		if in.resized {
			return nil, false, true
		}
		if rest := in.buf[in.sent:]; len(rest) > 0 {
			return append([]byte{apiv1.ChannelStdin}, rest[:min(len(rest), inputChunk)]...), false, true
		}
		if in.eof && !eofSent {
			return nil, true, true
		}
		if in.leaving {
			return nil, false, true
		}
		in.wait(ctx.Done())
	}
	return nil, false, false
}

// advance notes that n more bytes were sent, and forgets what need not be sent again.
func (in *input) advance(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.sent += n
	if drop := in.sent - inputKept; drop >= inputKept { // in large steps, so that moving the rest costs little
		in.buf = append(in.buf[:0], in.buf[drop:]...)
		in.base += uint64(drop)
		in.sent -= drop
	}
	in.notify()
}

// send sends on one connection until it or the attachment ends. Errors are the reader's to see.
func (in *input) send(ctx context.Context, conn *websocket.Conn) {
	eofSent, inFlight := false, 0
	for {
		chunk, eof, ok := in.next(ctx, eofSent)
		if !ok {
			return
		}
		if size := in.nextSize(); size != nil {
			frame, err := json.Marshal(apiv1.Control{Type: apiv1.FrameResize, Cols: uint16(size.Cols), Rows: uint16(size.Rows)})
			if err != nil || conn.Write(ctx, websocket.MessageBinary, append([]byte{apiv1.ChannelControl}, frame...)) != nil {
				return
			}
		}
		if chunk == nil && !eof {
			if in.allSent() {
				_ = conn.Close(websocket.StatusNormalClosure, "") // the reader sees the end, whatever it is
				return
			}
			continue
		}
		if eof {
			chunk, eofSent = append([]byte{apiv1.ChannelControl}, `{"type":"`+apiv1.FrameEOF+`"}`...), true
		}
		if conn.Write(ctx, websocket.MessageBinary, chunk) != nil {
			return
		}
		if eof {
			continue
		}
		n := len(chunk) - 1
		in.advance(n)
		if inFlight += n; inFlight >= inputInSync {
			// The answer comes after everything before it has been read, so no more than this is ever under way.
			if conn.Ping(ctx) != nil {
				return
			}
			inFlight = 0
		}
	}
}
