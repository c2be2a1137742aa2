package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

const (
	// waitSlice is how long one request of a longer wait lasts.
	waitSlice = 60 * time.Second
	// patience is how long a wait bears a server that does not answer: control may be restarting.
	patience = time.Minute
)

// Operation returns an operation. With Wait it is asked for again when it has ended, or when the wait ran out. A failed
// operation is no error of this call.
func (c *Client) Operation(ctx context.Context, id string, opts ...Option) (*apiv1.Operation, error) {
	return do[apiv1.Operation](ctx, c, call{method: http.MethodGet, path: join("operations", id)}.with(opts))
}

// OperationQuery selects operations.
type OperationQuery struct {
	Page
	States       []string
	Sandbox      string // only those of this one (id, or name of a live one)
	CreatedAfter time.Time
}

// ListOperations returns one part of the list of operations, newest first.
func (c *Client) ListOperations(ctx context.Context, query OperationQuery) (*apiv1.List[apiv1.Operation], error) {
	q := query.values()
	setList(q, "state", query.States)
	if query.Sandbox != "" {
		q.Set("sandbox_id", query.Sandbox)
	}
	if !query.CreatedAfter.IsZero() {
		q.Set("created_after", query.CreatedAfter.UTC().Format(time.RFC3339Nano))
	}
	return do[apiv1.List[apiv1.Operation]](ctx, c, call{method: http.MethodGet, path: join("operations"), query: q})
}

// CancelOperation asks for an operation to be canceled; one that has ended stays as it is.
func (c *Client) CancelOperation(ctx context.Context, id string) (*apiv1.Operation, error) {
	return do[apiv1.Operation](ctx, c, call{method: http.MethodPost, path: join("operations", id, "cancel")})
}

// WaitOperation waits until an operation has ended. When it did not succeed, its error is returned as an *Error with
// the operation.
func (c *Client) WaitOperation(ctx context.Context, id string) (*apiv1.Operation, error) {
	op, err := waitFor(ctx, apiv1.Operation.Ended, func(ctx context.Context) (*apiv1.Operation, error) {
		return c.Operation(ctx, id, Wait(waitSlice))
	})
	if err == nil && op.Error != nil {
		err = &Error{Problem: *op.Error}
	}
	return op, err
}

// WaitCommand waits until a command session has ended.
func (c *Client) WaitCommand(ctx context.Context, id string) (*apiv1.Command, error) {
	return waitFor(ctx, apiv1.Command.Ended, func(ctx context.Context) (*apiv1.Command, error) {
		return c.Command(ctx, id, Wait(waitSlice))
	})
}

// waitFor asks until ended says so. A server that cannot be reached, or says that it is starting, is asked again.
func waitFor[T any](ctx context.Context, ended func(T) bool, ask func(context.Context) (*T, error)) (*T, error) {
	retry := backoff{limit: patience}
	for {
		v, err := ask(ctx)
		switch {
		case err == nil && ended(*v):
			return v, nil
		case err == nil:
			retry.reset()
		case !isPassing(err) || !retry.pause(ctx):
			return nil, err
		}
	}
}

// isPassing reports whether err may go away by itself: nobody listens, or a part of SPACE is restarting.
func isPassing(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests || e.Status == http.StatusGatewayTimeout
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	_, ok := errors.AsType[net.Error](err) // *url.Error is one, whatever is inside
	return ok
}

// backoff paces retries.
type backoff struct {
	limit time.Duration // how long to go on without success
	since time.Time     // of the first failure
	next  time.Duration
}

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

func (b *backoff) reset() { b.since, b.next = time.Time{}, 0 }

// pause waits before the next try; false means to give up.
func (b *backoff) pause(ctx context.Context) bool {
	now := time.Now()
	if b.since.IsZero() {
		b.since, b.next = now, firstPause
	}
	if now.Sub(b.since) > b.limit {
		return false
	}
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	b.next = min(2*b.next, maxPause)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
