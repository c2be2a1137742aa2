package control

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// link is control's view of another process: up while its watch is open and it has been brought up to date.
type link struct {
	name string

	mu     sync.Mutex
	up     bool
	rising chan struct{}           // closed when it comes up the next time
	reset  context.CancelCauseFunc // ends the watch under way
}

func newLink(name string) *link {
	return &link{name: name, rising: make(chan struct{})}
}

func (l *link) set(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up && !l.up {
		close(l.rising)
		l.rising = make(chan struct{})
	}
	l.up = up
}

// comesUp returns a channel that is closed when the link comes up the next time: what failed is tried again then.
func (l *link) comesUp() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rising
}

// check is nil while the link is up.
func (l *link) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.up {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "a part of SPACE is starting or restarting",
			Cause: "space " + l.name + " is not connected", Remedy: "try again in a moment"}
	}
	return nil
}

// reconnect ends the watch, so that the other process is brought up to date from scratch.
func (l *link) reconnect(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reset != nil {
		l.reset(cause)
	}
}

// Back-off between attempts, with jitter.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
)

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// follow keeps a watch open until ctx ends. watch returns when its stream has ended.
func (c *Control) follow(ctx context.Context, l *link, watch func(context.Context) error) {
	for delay := firstDelay; ; {
		began := time.Now()
		once, cancel := context.WithCancelCause(ctx)
		l.mu.Lock()
		l.reset = cancel
		l.mu.Unlock()
		err := watch(once)
		l.set(false)
		cancel(nil)
		if ctx.Err() != nil {
			return
		}
		c.Logger.Warn("connection lost; trying again", "to", l.name, "error", err)
		if time.Since(began) > lastDelay {
			delay = firstDelay // it had worked for a while
		}
		select {
		case <-time.After(jitter(delay)):
		case <-ctx.Done():
			return
		}
		delay = min(2*delay, lastDelay)
	}
}

// insist calls fn until it succeeds, fails in a way that again says is final, or ctx ends (its cause is returned). It
// tries at once when the link comes up. Steps of operations have a policy of their own (see retry).
func (c *Control) insist(ctx context.Context, l *link, what string, again func(error) bool, fn func(context.Context) error) error {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		up := l.comesUp()
		err := fn(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !again(err) {
			return err
		}
		c.Logger.WarnContext(ctx, "a call failed; trying again", "call", what, "of", l.name, "error", err)
		select {
		case <-time.After(jitter(delay)):
		case <-up:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// retry is the policy of a step that calls the process behind l: it is tried again while that one does not answer.
func retry(l *link, deadline time.Duration) operation.Policy {
	return operation.Policy{Deadline: deadline, Again: transient, Wake: l.comesUp}
}

// transient reports that a process did not answer: the same call may succeed when it is back.
func transient(err error) bool { return sandbox.CodeOf(err) == sandbox.CodeUnavailable }

// anyError makes insist go on until ctx ends.
func anyError(error) bool { return true }

// call makes a unary call with a timeout (0: only ctx's) and gives its error the form of the house.
func call[Req, Res any](ctx context.Context, timeout time.Duration,
	fn func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error), msg *Req) (*Res, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	res, err := fn(ctx, connect.NewRequest(msg))
	if err == nil {
		return res.Msg, nil
	}
	err = rpc.FromConnect(err)
	if sandbox.CodeOf(err) == sandbox.CodeCanceled && ctx.Err() == nil { // by the other process, which is ending
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "a part of SPACE is restarting",
			Remedy: "try again in a moment", Err: err}
	}
	return nil, err
}

// stopped is why a watch under way ended when the other end did not say.
func stopped(ctx context.Context, err error) error {
	if err != nil {
		return rpc.FromConnect(err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.New("the stream ended")
}
