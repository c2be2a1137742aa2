package guest

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// openStream opens a stream whose first message comes within callTimeout, and returns it with that message received.
func openStream[Req, Res any](ctx context.Context, call func(context.Context, *connect.Request[Req]) (*connect.ServerStreamForClient[Res], error), req *Req) (*received[Res], error) {
	streamCtx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(callTimeout, cancel)
	stream, err := call(streamCtx, connect.NewRequest(req))
	if err == nil && !stream.Receive() {
		err = stream.Err()
		if err == nil {
			err = faultf("a stream without a message")
		}
		_ = stream.Close() // it has ended
	}
	if !timer.Stop() && err != nil && ctx.Err() == nil {
		err = tooSlow(err)
	}
	if err != nil {
		cancel()
		return nil, callError(ctx, err)
	}
	return &received[Res]{ctx: ctx, cancel: cancel, stream: stream, first: stream.Msg()}, nil
}

// received is an open stream.
type received[Res any] struct {
	ctx    context.Context // the caller's
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[Res]
	first  *Res
	err    error // sticky
}

// next returns the next message, io.EOF at a clean end.
func (r *received[Res]) next() (*Res, error) {
	if m := r.first; m != nil {
		r.first = nil
		return m, nil
	}
	if r.err == nil && r.stream.Receive() {
		return r.stream.Msg(), nil
	}
	if r.err == nil {
		r.err = io.EOF
		if err := r.stream.Err(); err != nil {
			r.err = callError(r.ctx, err)
		}
		r.cancel()
	}
	return nil, r.err
}

// Close ends the stream; a Receive under way returns. It may be called at any time, more than once; call it always.
func (r *received[Res]) Close() { r.cancel() }

// Attachment is an attach stream. One goroutine receives; Close may be called by any.
type Attachment struct {
	*received[agentv1.AttachResponse]
	state attachState
}

// Attach opens an attach stream. The events that Receive gives keep the order that the protocol promises: started
// first, then each byte of the asked streams once and in order, gaps named, exit last; an agent that does not keep
// it is CodeGuestFault.
func (c *Client) Attach(ctx context.Context, req *agentv1.AttachRequest) (*Attachment, error) {
	state, err := newAttachState(req)
	if err != nil {
		return nil, err
	}
	r, err := openStream(ctx, c.agent.Attach, req)
	if err != nil {
		return nil, err
	}
	return &Attachment{received: r, state: state}, nil
}

// Receive waits for the next event. io.EOF: the stream is whole. After an error nothing more comes.
func (a *Attachment) Receive() (*agentv1.AttachResponse, error) {
	m, err := a.next()
	if errors.Is(err, io.EOF) {
		if !a.state.complete() {
			a.err = faultf("an attach stream that ends before its last event")
		}
		return nil, a.err
	}
	if err != nil {
		return nil, err
	}
	event, err := a.state.accept(m)
	if err != nil {
		a.err = err
		a.Close()
		return nil, err
	}
	return event, nil
}

// maxWatched bounds the processes that an agent sends before synced: twice what its table holds.
const maxWatched = 8192

// Watch is a stream of the states of all processes of a guest. One goroutine receives; Close may be called by any.
type Watch struct {
	*received[agentv1.WatchProcessesResponse]
	sent   int
	synced bool
}

// WatchProcesses opens a watch: every known process, then synced, then each change.
func (c *Client) WatchProcesses(ctx context.Context) (*Watch, error) {
	r, err := openStream(ctx, c.agent.WatchProcesses, &agentv1.WatchProcessesRequest{})
	if err != nil {
		return nil, err
	}
	return &Watch{received: r}, nil
}

// Receive waits for the next event. A watch has no regular end: io.EOF is not returned.
func (w *Watch) Receive() (*agentv1.WatchProcessesResponse, error) {
	m, err := w.next()
	if errors.Is(err, io.EOF) {
		return nil, unreachable(errors.New("the agent ended the watch"))
	}
	if err != nil {
		return nil, err
	}
	event, err := w.accept(m)
	if err != nil {
		w.err = err
		w.Close()
	}
	return event, err
}

func (w *Watch) accept(m *agentv1.WatchProcessesResponse) (*agentv1.WatchProcessesResponse, error) {
	switch e := m.Event.(type) {
	case *agentv1.WatchProcessesResponse_Process:
		if w.sent++; !w.synced && w.sent > maxWatched {
			return nil, faultf("more than %d processes", maxWatched)
		}
		p, err := checkProcess(e.Process, "")
		if err != nil {
			return nil, err
		}
		return &agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: p}}, nil
	case *agentv1.WatchProcessesResponse_Synced:
		if w.synced || !e.Synced {
			return nil, faultf("synced twice")
		}
		w.synced = true
		return &agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}}, nil
	}
	return nil, faultf("an empty watch event")
}

// attachState follows an attach stream and knows what may come next.
type attachState struct {
	process   sandbox.ProcessID
	follow    bool
	positions map[agentv1.OutputStream]*streamPosition
	started   bool
	exited    bool
}

type streamPosition struct {
	next  uint64
	known bool // false until the first event of a stream that was asked from its end
}

func newAttachState(req *agentv1.AttachRequest) (attachState, error) {
	id, err := sandbox.ParseProcessID(req.ProcessId)
	if err != nil {
		return attachState{}, err
	}
	s := attachState{process: id, follow: req.Follow, positions: map[agentv1.OutputStream]*streamPosition{}}
	for _, p := range req.Positions {
		s.positions[p.Stream] = &streamPosition{next: p.Offset, known: !p.End}
	}
	return s, nil
}

// complete reports whether the stream may end now.
func (s *attachState) complete() bool { return s.exited || s.started && !s.follow }

// accept checks an event and rebuilds it.
func (s *attachState) accept(m *agentv1.AttachResponse) (*agentv1.AttachResponse, error) {
	if start, ok := m.Event.(*agentv1.AttachResponse_Started); ok != !s.started || s.exited {
		return nil, faultf("an attach event out of order")
	} else if ok {
		p, err := checkProcess(start.Started, s.process)
		s.started = err == nil
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: p}}, err
	}
	switch e := m.Event.(type) {
	case *agentv1.AttachResponse_Data_:
		d := e.Data
		if err := s.advance(d.GetStream(), d.GetOffset(), d.GetOffset()+uint64(len(d.GetData()))); err != nil {
			return nil, err
		}
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{
			Data: &agentv1.AttachResponse_Data{Stream: d.Stream, Offset: d.Offset, Data: d.Data}}}, nil
	case *agentv1.AttachResponse_Gap_:
		g := e.Gap
		if err := s.advance(g.GetStream(), g.GetFrom(), g.GetTo()); err != nil {
			return nil, err
		}
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap_{
			Gap: &agentv1.AttachResponse_Gap{Stream: g.Stream, From: g.From, To: g.To}}}, nil
	case *agentv1.AttachResponse_Exit:
		return s.exit(e.Exit)
	}
	return nil, faultf("an empty attach event")
}

// advance accepts the bytes from..to of a stream only if they are the next ones.
func (s *attachState) advance(stream agentv1.OutputStream, from, to uint64) error {
	p := s.positions[stream]
	switch {
	case p == nil:
		return faultf("output of stream %d, which was not asked for", stream)
	case p.known && from != p.next, to <= from, to > maxOffset:
		return faultf("output from %d to %d after %d", from, to, p.next)
	}
	p.next, p.known = to, true
	return nil
}

// exit accepts the last event: an ended process whose output has been sent to its end.
func (s *attachState) exit(p *agentv1.Process) (*agentv1.AttachResponse, error) {
	out, err := checkProcess(p, s.process)
	if err != nil {
		return nil, err
	}
	ended := out.State == agentv1.ProcessState_PROCESS_STATE_EXITED || out.State == agentv1.ProcessState_PROCESS_STATE_FAILED
	if !s.follow || !ended {
		return nil, faultf("an exit event of a process that has not ended")
	}
	ends := map[agentv1.OutputStream]uint64{
		agentv1.OutputStream_OUTPUT_STREAM_STDOUT: out.StdoutBytes, agentv1.OutputStream_OUTPUT_STREAM_STDERR: out.StderrBytes,
		agentv1.OutputStream_OUTPUT_STREAM_PTY: out.PtyBytes}
	for stream, pos := range s.positions {
		if pos.known && pos.next != ends[stream] {
			return nil, faultf("output ends at %d, the stream at %d", pos.next, ends[stream])
		}
	}
	s.exited = true
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: out}}, nil
}
