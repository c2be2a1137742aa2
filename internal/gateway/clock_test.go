package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
)

// TestGuestClockIsKept: a clock that is off is put right, over the connection that is there; one that is right, or whose
// machine is held, is left alone.
func TestGuestClockIsKept(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(d *Deps) { d.ClockEvery = 10 * time.Millisecond })
	b := w.boot(w.newBox())
	ahead := func() time.Duration { return time.Duration(b.machine.ahead.Load()) }
	w.configure(b)
	for _, off := range []time.Duration{time.Hour, -70 * time.Second, -30 * 365 * 24 * time.Hour} {
		b.machine.ahead.Store(int64(off))
		w.eventually("the clock is right", func() bool { return ahead().Abs() < 2*time.Second })
	}
	if b.dials.Load() != 1 || b.machine.sets.Load() != 0 {
		t.Errorf("%d connections, the clock was set %d times", b.dials.Load(), b.machine.sets.Load())
	}
	w.publish(b, "paused")
	w.eventually("all connections are closed", func() bool { return b.open.Load() == 0 })
	b.machine.ahead.Store(int64(-time.Hour))
	n := b.machine.adjusts.Load()
	w.publish(b, "")
	w.eventually("the clock is right after the hold", func() bool { return ahead().Abs() < 2*time.Second })
	if made := b.machine.adjusts.Load() - n; made < 1 {
		t.Errorf("adjusted %d times", made)
	}
}

// dreamer is an agent that lives in another time, whatever it is told.
type dreamer struct {
	agentv1connect.UnimplementedAgentServiceHandler
	asked   atomic.Int64
	watches atomic.Int64
	begun   chan struct{} // asked twice
}

func (d *dreamer) AdjustClock(context.Context, *connect.Request[agentv1.AdjustClockRequest]) (*connect.Response[agentv1.AdjustClockResponse], error) {
	if d.asked.Add(1) == 2 {
		close(d.begun)
	}
	return connect.NewResponse(&agentv1.AdjustClockResponse{WallTime: &timestamppb.Timestamp{Seconds: 253402300799}}), nil
}

// WatchProcesses ends, and is begun anew as often as it is let.
func (d *dreamer) WatchProcesses(_ context.Context, _ *connect.Request[agentv1.WatchProcessesRequest], s *connect.ServerStream[agentv1.WatchProcessesResponse]) error {
	d.watches.Add(1)
	if err := s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	<-d.begun
	return nil
}

// TestLyingClockCostsLittle: two calls in each interval, however often the guest ends its watch.
func TestLyingClockCostsLittle(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(d *Deps) { d.ClockEvery = time.Hour })
	b := w.newBox()
	d := &dreamer{begun: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(d))
	w.serve(b, mux)
	w.configure(b)
	w.eventually("three watches", func() bool { return d.watches.Load() >= 3 })
	if n := d.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}
