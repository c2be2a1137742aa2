// Package qmp is a small client of QEMU's control protocol. It knows commands and events, not what they mean. The
// other side may have been taken over by a guest: messages are bounded, answers have deadlines, floods are slowed down
// to what costs nothing, and anything unexpected ends the connection.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// defaultDeadline bounds an answer when the caller's context does not.
const defaultDeadline = 5 * time.Second

// Messages that come in one window beyond burst wait for the next one. QEMU itself sends a handful.
const (
	burst  = 256
	window = time.Second
)

// Conn is one connection. Safe for concurrent use; commands go one at a time.
type Conn struct {
	conn   net.Conn
	events chan<- Event

	turn   chan struct{} // held by the command under way
	lastID uint64        // guarded by turn

	mu      sync.Mutex
	waiting uint64 // id of the command under way, 0 for none
	answer  chan message

	done chan struct{} // closed when the connection has ended, err is set then
	once sync.Once
	err  error
}

// Open does the handshake over conn, which it takes over, also when it fails. Events that come while the channel is
// full are dropped.
func Open(ctx context.Context, conn net.Conn, events chan<- Event) (*Conn, error) {
	c := &Conn{conn: conn, events: events, turn: make(chan struct{}, 1), answer: make(chan message, 1), done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { c.end(ctx.Err()) })
	defer stop()
	if err := conn.SetReadDeadline(deadline(ctx)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := bufio.NewReaderSize(conn, MaxLine)
	m, err := read(r)
	if err == nil && m.kind != kindGreeting {
		err = errors.New("qmp: no greeting")
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		c.end(err)
		return nil, c.err
	}
	go c.receive(r)
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.end(err)
		return nil, err
	}
	return c, nil
}

func deadline(ctx context.Context) time.Time { return within(ctx, defaultDeadline) }

func within(ctx context.Context, limit time.Duration) time.Time {
	d := time.Now().Add(limit)
	if own, ok := ctx.Deadline(); ok && own.Before(d) {
		return own
	}
	return d
}

// Execute runs a command; arguments and result may be nil. An answer that does not come in time ends the connection,
// for nobody could tell a late one from the next.
func (c *Conn) Execute(ctx context.Context, command string, arguments, result any) error {
	return c.ExecuteWithin(ctx, defaultDeadline, command, arguments, result)
}

// ExecuteWithin is Execute with another bound for the answer.
func (c *Conn) ExecuteWithin(ctx context.Context, limit time.Duration, command string, arguments, result any) error {
	ctx, cancel := context.WithDeadline(ctx, within(ctx, limit))
	defer cancel()
	select {
	case c.turn <- struct{}{}:
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("qmp: %s: %w", command, ctx.Err())
	}
	defer func() { <-c.turn }()
	m, err := c.roundTrip(ctx, command, arguments)
	if err != nil {
		return fmt.Errorf("qmp: %s: %w", command, err)
	}
	if m.kind == kindError {
		return fmt.Errorf("%s: %w", command, m.err)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.result, result); err != nil {
		return fmt.Errorf("qmp: %s: %w", command, err)
	}
	return nil
}

func (c *Conn) roundTrip(ctx context.Context, command string, arguments any) (message, error) {
	c.lastID++
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, arguments, c.lastID}
	data, err := json.Marshal(request)
	if err != nil {
		return message{}, err
	}
	c.mu.Lock()
	c.waiting = c.lastID
	c.mu.Unlock()
	if err := c.conn.SetWriteDeadline(deadline(ctx)); err != nil {
		c.end(err)
		return message{}, c.err
	}
	if _, err := c.conn.Write(append(data, '\n')); err != nil {
		c.end(err)
		return message{}, c.err
	}
	select {
	case m := <-c.answer:
		return m, nil
	case <-c.done:
		return message{}, c.err
	case <-ctx.Done():
		c.end(ctx.Err())
		return message{}, c.err
	}
}

// receive sorts what comes until the connection ends.
func (c *Conn) receive(r *bufio.Reader) {
	start, count := time.Now(), 0
	for {
		m, err := read(r)
		if err == nil {
			err = c.dispatch(m)
		}
		if err != nil {
			c.end(err)
			return
		}
		if time.Since(start) > window {
			start, count = time.Now(), 0
		}
		if count++; count < burst {
			continue
		}
		select {
		case <-time.After(time.Until(start.Add(window))):
		case <-c.done:
			return
		}
	}
}

func (c *Conn) dispatch(m message) error {
	switch m.kind {
	case kindEvent:
		select {
		case c.events <- m.event:
		default:
		}
		return nil
	case kindReturn, kindError:
		c.mu.Lock()
		expected := c.waiting
		c.waiting = 0
		c.mu.Unlock()
		if expected == 0 || m.id != expected {
			return errors.New("qmp: an answer that nobody asked for")
		}
		c.answer <- m
		return nil
	}
	return errors.New("qmp: unexpected message")
}

// read takes one line, however it is cut into pieces.
func read(r *bufio.Reader) (message, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return message{}, errors.New("qmp: the message is too long")
	}
	if err != nil {
		return message{}, fmt.Errorf("qmp: %w", err)
	}
	m, err := parse(line)
	// The line is overwritten by the next one.
	m.result = append(json.RawMessage(nil), m.result...)
	m.event.Data = append(json.RawMessage(nil), m.event.Data...)
	return m, err
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection. Idempotent.
func (c *Conn) Close() { c.end(net.ErrClosed) }

func (c *Conn) end(err error) {
	c.once.Do(func() {
		c.err = err
		c.conn.Close()
		close(c.done)
	})
}
