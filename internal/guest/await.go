package guest

import (
	"context"
	"errors"
	"net"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// How AwaitHello knocks. A packet to a guest whose network is not up is lost, and the kernel repeats it only after a
// second: so a new attempt begins every knockEvery, while those under way keep their chance, for a guest that is up but
// slow. Once connected, the agent gets time to answer.
const (
	knockEvery   = 25 * time.Millisecond
	knockTimeout = 500 * time.Millisecond
	helloTimeout = 10 * time.Second
)

// AwaitHello knocks until the agent answers or ctx is over (CodeGuestNotReady). A guest that answers nonsense or does
// not accept the token ends it at once.
func (c *Client) AwaitHello(ctx context.Context) (*agentv1.HelloResponse, error) {
	for {
		hello, err := c.tryHello(ctx)
		if errors.Is(err, ErrClosed) {
			return nil, err
		}
		switch sandbox.CodeOf(err) {
		case "":
			return hello, nil
		case sandbox.CodeUnavailable, sandbox.CodeGuestNotReady:
		default:
			return nil, err
		}
		timer := time.NewTimer(knockEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, contextError(ctx, err)
		}
	}
}

// tryHello connects and asks Hello over the new connection.
func (c *Client) tryHello(ctx context.Context) (*agentv1.HelloResponse, error) {
	conn, err := c.knock(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old := c.spare
	c.spare = conn
	c.mu.Unlock()
	if old != nil {
		_ = old.Close() // nobody used it
	}
	helloCtx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	return c.Hello(helloCtx)
}

// knock returns the first connection that an attempt brings. Attempts that come too late are closed.
func (c *Client) knock(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		conn net.Conn
		err  error
	}
	answers := make(chan answer)
	attempt := func() {
		dialCtx, cancel := context.WithTimeout(ctx, knockTimeout)
		defer cancel()
		conn, err := c.connect(dialCtx)
		select {
		case answers <- answer{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close() // another was first, or nobody waits any more
			}
		}
	}
	tick := time.NewTicker(knockEvery)
	defer tick.Stop()
	last := errors.New("no attempt has ended yet")
	go attempt()
	for {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.conn, nil
			}
			if errors.Is(a.err, ErrClosed) {
				return nil, unreachable(a.err)
			}
			last = a.err
		case <-tick.C:
			go attempt()
		case <-ctx.Done():
			return nil, contextError(ctx, unreachable(last))
		}
	}
}
