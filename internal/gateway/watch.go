package gateway

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Back-off between attempts to watch an agent, with jitter.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

var errResync = errors.New("the whole state is wanted again")

// watchAgent follows the processes of a route's sandbox until the route ends. While the machine is held it waits, and
// what is known of the processes stays.
func (g *Gateway) watchAgent(rt *route) {
	for {
		lk, err := g.await(rt.published, rt)
		if err != nil {
			return
		}
		g.watchLink(reached{rt, lk})
	}
}

// watchLink follows the processes until the link ends.
func (g *Gateway) watchLink(rt reached) {
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		began := time.Now()
		synced, err := g.watchOnce(rt)
		if rt.life.Err() != nil {
			return
		}
		if errors.Is(err, errResync) {
			delay = firstRetry / 2
			continue
		}
		if synced && time.Since(began) > lastRetry { // one that ends each watch at once is asked less and less
			delay = firstRetry
		}
		level := slog.LevelDebug // the first failure says enough
		if synced {
			level = slog.LevelInfo
		}
		g.deps.Logger.Log(rt.life, level, "the watch of an agent ended; trying again", "sandbox_id", rt.id,
			"generation", rt.generation, "error", err)
		select {
		case <-time.After(delay/2 + rand.N(delay)):
		case <-rt.life.Done():
			return
		}
	}
}

// watchOnce follows one stream and reports whether it came as far as synced.
func (g *Gateway) watchOnce(rt reached) (synced bool, err error) {
	ctx, cancel := context.WithCancelCause(rt.life)
	var clock sync.WaitGroup
	defer clock.Wait()
	defer cancel(nil)
	stream, err := rt.guest.WatchProcesses(ctx)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	go func() {
		select {
		case <-rt.resync:
			cancel(errResync)
		case <-ctx.Done():
		}
	}()
	rt.room.begin()
	told := map[sandbox.ProcessID]int{}
	pace := pacer{since: time.Now()}
	for {
		if synced {
			pace.wait(ctx)
		}
		res, err := stream.Receive()
		if err != nil {
			if errors.Is(context.Cause(ctx), errResync) {
				err = errResync
			}
			return synced, err
		}
		switch e := res.GetEvent().(type) {
		case *agentv1.WatchProcessesResponse_Process:
			// A guest may invent processes, or tell the same again and again; control hears only of those it made, and
			// of each step of their lives once.
			id, step := sandbox.ProcessID(e.Process.GetProcessId()), stepOf(e.Process)
			if step > told[id] && rt.knows(id) {
				told[id] = step
				rt.room.changed(e.Process)
			}
		case *agentv1.WatchProcessesResponse_Synced:
			if !synced {
				clock.Go(func() { g.keepClock(ctx, rt) })
			}
			synced = true
			rt.room.sync()
		}
	}
}

// stepOf is how far a process has come in its life, from 1 on.
func stepOf(p *agentv1.Process) int {
	switch p.GetState() {
	case agentv1.ProcessState_PROCESS_STATE_EXITED, agentv1.ProcessState_PROCESS_STATE_FAILED:
		return 3
	case agentv1.ProcessState_PROCESS_STATE_RUNNING:
		return 2
	}
	return 1
}

// A guest that reports more changes than paceEvents in paceTime is read more slowly: it waits, not we.
const (
	paceEvents = 500
	paceTime   = 250 * time.Millisecond
)

// pacer bounds how often something is done.
type pacer struct {
	since time.Time
	count int
}

func (p *pacer) wait(ctx context.Context) {
	if p.count++; p.count < paceEvents {
		return
	}
	select {
	case <-time.After(paceTime - time.Since(p.since)):
	case <-ctx.Done():
	}
	p.since, p.count = time.Now(), 0
}

// Watch implements GatewayService.
func (s *service) Watch(ctx context.Context, _ *connect.Request[gatewayv1.WatchRequest], out *connect.ServerStream[gatewayv1.WatchResponse]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.g.ctx, func() { cancel(closing()) })()
	f := s.g.board.subscribe()
	defer s.g.board.unsubscribe(f)
	s.g.mu.Lock()
	hello := &gatewayv1.WatchResponse_Hello{InstanceId: s.g.instance, Configured: s.g.verifier != nil}
	s.g.mu.Unlock()
	if err := out.Send(&gatewayv1.WatchResponse{Event: &gatewayv1.WatchResponse_Hello_{Hello: hello}}); err != nil {
		return err
	}
	for {
		res, err := f.next(ctx)
		if err != nil {
			return err
		}
		if err := out.Send(res); err != nil {
			return err
		}
	}
}
