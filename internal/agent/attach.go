package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func (s *service) WatchProcesses(ctx context.Context, _ *connect.Request[agentv1.WatchProcessesRequest], stream *connect.ServerStream[agentv1.WatchProcessesResponse]) error {
	release, err := s.server.takeStream()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := s.server.bind(ctx)
	defer cancel()
	return s.server.table.watch(ctx, func(p *agentv1.Process) error {
		if p == nil {
			return stream.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}})
		}
		return stream.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: p}})
	})
}

func (s *service) Attach(ctx context.Context, req *connect.Request[agentv1.AttachRequest], stream *connect.ServerStream[agentv1.AttachResponse]) error {
	release, err := s.server.takeStream()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := s.server.bind(ctx)
	defer cancel()
	p, err := s.server.table.get(req.Msg.ProcessId)
	if err != nil {
		return err
	}
	positions, err := parsePositions(req.Msg.Positions)
	if err != nil {
		return err
	}
	r, err := p.output.newReader(positions, req.Msg.Follow)
	if err != nil {
		return err
	}
	defer r.close()
	if req.Msg.Start {
		s.server.table.start(p)
	}
	if err := stream.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: p.snapshot()}}); err != nil {
		return err
	}
	if err := sendOutput(ctx, r, stream.Send); err != nil {
		return err
	}
	if !req.Msg.Follow {
		return nil
	}
	return stream.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: p.snapshot()}})
}

// sendOutput sends what r reads until its end.
func sendOutput(ctx context.Context, r *reader, send func(*agentv1.AttachResponse) error) error {
	for {
		piece, err := r.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return stoppedError(ctx)
		}
		if err := send(piece.message()); err != nil {
			return err
		}
	}
}

// wireStreams returns the names of the streams in the protocol.
func wireStreams() [streamCount]agentv1.OutputStream {
	return [streamCount]agentv1.OutputStream{
		stdoutStream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT,
		stderrStream: agentv1.OutputStream_OUTPUT_STREAM_STDERR,
		ptyStream:    agentv1.OutputStream_OUTPUT_STREAM_PTY,
	}
}

// message is the piece as Attach sends it.
func (p piece) message() *agentv1.AttachResponse {
	name := wireStreams()[p.stream]
	if p.data == nil {
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap_{
			Gap: &agentv1.AttachResponse_Gap{Stream: name, From: p.offset, To: p.gapTo}}}
	}
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{
		Data: &agentv1.AttachResponse_Data{Stream: name, Offset: p.offset, Data: p.data}}}
}

// parsePositions accepts each stream at most once.
func parsePositions(list []*agentv1.StreamPosition) ([]position, error) {
	names := wireStreams()
	var out []position
	var seen [streamCount]bool
	for i, p := range list {
		which := slices.Index(names[:], p.GetStream())
		if which < 0 {
			return nil, badField(fmt.Sprintf("positions[%d].stream", i), "is not a stream")
		}
		if seen[which] {
			return nil, badField(fmt.Sprintf("positions[%d].stream", i), "is named twice")
		}
		seen[which] = true
		out = append(out, position{stream: which, offset: p.Offset, end: p.End})
	}
	return out, nil
}

// takeStream takes one of the places for streams; give it back with the function.
func (s *Server) takeStream() (release func(), err error) {
	return takePlace(s.streams, "streams")
}

func takePlace(places chan struct{}, what string) (release func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	default:
		return nil, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "the machine's agent is busy",
			Cause: fmt.Sprintf("%d %s are open", cap(places), what), Remedy: "close some, or try again later"}
	}
}

var errEnding = errors.New("the agent is ending")

// bind returns a context that also ends when the server is closed.
func (s *Server) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errEnding) })
	return ctx, func() { stop(); cancel(nil) }
}
