package gateway

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/ingress"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxOutputBytes is what ReadOutput returns at most, also when more is asked.
const maxOutputBytes = 1 << 20

// ReadOutput implements GatewayService.
func (s *service) ReadOutput(ctx context.Context, req *connect.Request[gatewayv1.ReadOutputRequest]) (*connect.Response[gatewayv1.ReadOutputResponse], error) {
	m := req.Msg
	rt, process, err := s.target(m)
	if err != nil {
		return nil, err
	}
	switch m.GetStream() {
	case agentv1.OutputStream_OUTPUT_STREAM_STDOUT, agentv1.OutputStream_OUTPUT_STREAM_STDERR, agentv1.OutputStream_OUTPUT_STREAM_PTY:
	default:
		return nil, sandbox.Errorf(sandbox.CodeInvalidArgument, "stream %d is not known", m.GetStream())
	}
	limit := int(min(m.GetMaxBytes(), maxOutputBytes))
	if limit == 0 {
		limit = maxOutputBytes
	}
	stream, err := rt.guest.Attach(ctx, &agentv1.AttachRequest{ProcessId: string(process),
		Positions: []*agentv1.StreamPosition{{Stream: m.GetStream(), Offset: m.GetOffset()}}})
	if err != nil {
		return nil, s.over(rt, err)
	}
	defer stream.Close()
	out, err := readOutput(stream, m.GetOffset(), limit)
	if err != nil {
		return nil, s.over(rt, err)
	}
	return connect.NewResponse(out), nil
}

// FollowOutput implements GatewayService.
func (s *service) FollowOutput(ctx context.Context, req *connect.Request[gatewayv1.FollowOutputRequest], out *connect.ServerStream[agentv1.AttachResponse]) error {
	rt, process, err := s.followed(ctx, req.Msg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(rt.life, func() { cancel(context.Cause(rt.life)) })()
	stream, err := rt.guest.Attach(ctx, &agentv1.AttachRequest{ProcessId: string(process), Start: req.Msg.GetStart(), Follow: true,
		Positions: req.Msg.GetPositions()})
	if err != nil {
		return s.cutOff(rt, err)
	}
	defer stream.Close()
	for {
		res, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.cutOff(rt, err)
		}
		if err := out.Send(res); err != nil {
			return err
		}
	}
}

// followed finds the process to follow. While its machine is held it waits, for whoever follows wants to go on then; to
// start something is refused as all calls are.
func (s *service) followed(ctx context.Context, m *gatewayv1.FollowOutputRequest) (reached, sandbox.ProcessID, error) {
	if m.GetStart() {
		return s.target(m)
	}
	id, err := sandbox.ParseID(m.GetSandboxId())
	if err != nil {
		return reached{}, "", err
	}
	process, err := sandbox.ParseProcessID(m.GetProcessId())
	if err != nil {
		return reached{}, "", err
	}
	s.g.mu.Lock()
	rt, err := s.g.find(id)
	s.g.mu.Unlock()
	if err != nil {
		return reached{}, "", err
	}
	lk, err := s.g.await(ctx, rt)
	if err == nil {
		return reached{rt, lk}, process, nil
	}
	if s.g.ctx.Err() != nil {
		return reached{}, "", closing()
	}
	if ctx.Err() != nil {
		return reached{}, "", &sandbox.Error{Code: sandbox.CodeCanceled, Message: "the call was canceled", Err: err}
	}
	return reached{}, "", &sandbox.Error{Code: sandbox.CodeNotFound, Message: "the sandbox is not reachable any more", Cause: err.Error()}
}

// cutOff is over for a stream that goes on when it is asked for again: after a pause that may be done at once.
func (s *service) cutOff(rt reached, err error) error {
	if p, ok := errors.AsType[*ingress.PausedError](context.Cause(rt.life)); ok {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox was paused", Cause: p.Reason,
			Remedy: "ask again from your offsets: it goes on with the sandbox", Err: err}
	}
	return s.over(rt, err)
}

// readOutput takes up to limit bytes that lie together: a gap before the first byte moves the offset, a later one ends
// the answer.
func readOutput(stream *guest.Attachment, offset uint64, limit int) (*gatewayv1.ReadOutputResponse, error) {
	out := &gatewayv1.ReadOutputResponse{Offset: offset}
	for {
		res, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		switch e := res.GetEvent().(type) {
		case *agentv1.AttachResponse_Gap_:
			if len(out.Data) > 0 {
				out.More = true
				return out, nil
			}
			out.Offset = e.Gap.GetTo()
		case *agentv1.AttachResponse_Data_:
			data := e.Data.GetData()
			room := limit - len(out.Data)
			out.Data = append(out.Data, data[:min(room, len(data))]...)
			if len(data) > room {
				out.More = true
				return out, nil
			}
		}
	}
}
