package guest

import (
	"context"
	"errors"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// How AwaitHello knocks. A packet to a guest whose network is not up is lost, and the kernel repeats it only after a
// second, so attempts to connect are short; once connected, the agent gets time to answer.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = 50 * time.Millisecond
	firstKnock   = 100 * time.Millisecond
	longestKnock = 300 * time.Millisecond
	helloTimeout = 10 * time.Second
)

// AwaitHello knocks until the agent answers or ctx is over (CodeGuestNotReady). A guest that answers nonsense or does
// not accept the token ends it at once.
func (c *Client) AwaitHello(ctx context.Context) (*agentv1.HelloResponse, error) {
	pause, knock := firstPause, firstKnock
	for {
		hello, err := c.knock(ctx, knock)
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
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, contextError(ctx, err)
		}
		pause, knock = min(pause*2, longestPause), min(knock*5/4, longestKnock)
	}
}

// knock connects within the given time and asks Hello over the new connection.
func (c *Client) knock(ctx context.Context, within time.Duration) (*agentv1.HelloResponse, error) {
	dialCtx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := c.connect(dialCtx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, contextError(ctx, err)
		}
		return nil, unreachable(err)
	}
	c.mu.Lock()
	old := c.spare
	c.spare = conn
	c.mu.Unlock()
	if old != nil {
		_ = old.Close() // nobody used it
	}
	helloCtx, cancelHello := context.WithTimeout(ctx, helloTimeout)
	defer cancelHello()
	return c.Hello(helloCtx)
}
