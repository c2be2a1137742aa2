package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	retryFirst = 20 * time.Millisecond
	retryMax   = time.Second
)

// source reads a session's output in order, each byte once, and holds the agent to it: data must continue where the
// last ended or follow a gap that says so. When the agent cannot be reached for a while, it attaches again from there.
type source struct {
	ctx      context.Context
	session  Session
	follow   bool
	patience time.Duration

	// Started is the process as it was when the source was opened.
	Started *agentv1.Process
	next    map[agentv1.OutputStream]uint64
	stream  Stream

	troubleSince time.Time // zero: the guest answers
	pause        time.Duration
}

// event is one step of a source: data, a gap or, last, the process's end. Exit is nil at the end of a source that
// does not follow.
type event struct {
	kind   eventKind
	stream agentv1.OutputStream
	data   []byte
	gap    gap
	exit   *agentv1.Process
}

type eventKind int

const (
	eventData eventKind = iota
	eventGap
	eventEnd
)

// gap says that the bytes from <= n < to are gone.
type gap struct{ from, to uint64 }

// openSource attaches to the session's process, starting it if it is only created and follow is set. ctx bounds the
// source's whole life. Agents that cannot be reached are tried again for patience.
func openSource(ctx context.Context, s Session, follow bool, wants map[agentv1.OutputStream]position, patience time.Duration) (*source, error) {
	src := &source{ctx: ctx, session: s, follow: follow, patience: patience, next: map[agentv1.OutputStream]uint64{}}
	err := src.patiently(func() (err error) {
		if err = src.locate(wants); err == nil {
			src.Started, err = src.attach()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return src, nil
}

// locate turns the wanted positions into offsets. "end" is looked up beforehand, so that the offset told to the client
// is exactly where the stream begins, however much is written meanwhile.
func (s *source) locate(wants map[agentv1.OutputStream]position) error {
	var now *agentv1.Process
	for stream, want := range wants {
		if want.end && now == nil {
			var err error
			if now, err = s.session.Guest.GetProcess(s.ctx, s.session.ProcessID); err != nil {
				return err
			}
		}
		s.next[stream] = want.offset
		if want.end {
			s.next[stream] = streamEnd(now, stream)
		}
	}
	return nil
}

func streamEnd(p *agentv1.Process, stream agentv1.OutputStream) uint64 {
	switch stream {
	case agentv1.OutputStream_OUTPUT_STREAM_STDERR:
		return p.GetStderrBytes()
	case agentv1.OutputStream_OUTPUT_STREAM_PTY:
		return p.GetPtyBytes()
	}
	return p.GetStdoutBytes()
}

// Offset is where the next byte of a stream is, or 0 for one that is not read.
func (s *source) Offset(stream agentv1.OutputStream) uint64 { return s.next[stream] }

// Close ends the source. Idempotent; it may be called while Next waits only through the end of the source's context.
func (s *source) Close() {
	if s.stream != nil {
		s.stream.Close()
	}
}

// Next waits for the next event. After eventEnd or an error it must not be called again.
func (s *source) Next() (event, error) {
	for {
		res, err := s.stream.Receive()
		if err == nil {
			s.troubleSince = time.Time{}
			return s.check(res)
		}
		if errors.Is(err, io.EOF) && !s.follow {
			return event{kind: eventEnd}, nil
		}
		if err := s.resume(err); err != nil {
			return event{}, err
		}
	}
}

// resume attaches again after the stream broke with cause.
func (s *source) resume(cause error) error {
	if errors.Is(cause, io.EOF) {
		cause = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the agent ended the stream too early", Err: cause}
	}
	if err := s.pauseAfter(cause); err != nil {
		return err
	}
	s.stream.Close()
	return s.patiently(func() error {
		_, err := s.attach()
		return err
	})
}

func worthRetry(err error) bool {
	code := sandbox.CodeOf(err)
	return code == sandbox.CodeUnavailable || code == sandbox.CodeGuestNotReady
}

// patiently calls try until it succeeds, fails for good, or the guest has been in trouble for too long.
func (s *source) patiently(try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if err := s.pauseAfter(err); err != nil {
			return err
		}
	}
}

// pauseAfter waits before another try, longer each time, or returns why there is no point in one. Only an event, not
// an attach that succeeds, ends the trouble: an agent that drops every stream at once gets no busy loop out of us.
func (s *source) pauseAfter(cause error) error {
	// The session's life is asked itself: the context hears of its end a moment later, the stream perhaps before.
	for _, ctx := range []context.Context{s.session.Life, s.ctx} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if !worthRetry(cause) {
		return cause
	}
	if s.troubleSince.IsZero() {
		s.troubleSince, s.pause = time.Now(), retryFirst
	}
	if time.Since(s.troubleSince)+s.pause > s.patience {
		return cause
	}
	select {
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-time.After(s.pause):
		s.pause = min(2*s.pause, retryMax)
		return nil
	}
}

// attach opens a stream from the next offsets on.
func (s *source) attach() (*agentv1.Process, error) {
	req := &agentv1.AttachRequest{ProcessId: string(s.session.ProcessID), Start: s.follow, Follow: s.follow}
	for stream, offset := range s.next {
		req.Positions = append(req.Positions, &agentv1.StreamPosition{Stream: stream, Offset: offset})
	}
	stream, err := s.session.Guest.Attach(s.ctx, req)
	if err != nil {
		return nil, err
	}
	res, err := stream.Receive()
	if err == nil && res.GetStarted() == nil {
		err = guestFault("the stream does not begin with the process")
	}
	if err != nil {
		stream.Close()
		if errors.Is(err, io.EOF) {
			err = guestFault("the stream is empty")
		}
		return nil, err
	}
	s.stream = stream
	return res.GetStarted(), nil
}

// check holds the agent to the order of bytes.
func (s *source) check(res *agentv1.AttachResponse) (event, error) {
	switch e := res.GetEvent().(type) {
	case *agentv1.AttachResponse_Data_:
		d := e.Data
		next, asked := s.next[d.GetStream()]
		if !asked || d.GetOffset() != next {
			return event{}, guestFault(fmt.Sprintf("data of stream %d at offset %d, expected %d", d.GetStream(), d.GetOffset(), next))
		}
		s.next[d.GetStream()] = next + uint64(len(d.GetData()))
		return event{kind: eventData, stream: d.GetStream(), data: d.GetData()}, nil
	case *agentv1.AttachResponse_Gap_:
		g := e.Gap
		next, asked := s.next[g.GetStream()]
		if !asked || g.GetFrom() != next || g.GetTo() <= next {
			return event{}, guestFault(fmt.Sprintf("gap of stream %d from %d to %d, expected it at %d", g.GetStream(), g.GetFrom(), g.GetTo(), next))
		}
		s.next[g.GetStream()] = g.GetTo()
		return event{kind: eventGap, stream: g.GetStream(), gap: gap{from: g.GetFrom(), to: g.GetTo()}}, nil
	case *agentv1.AttachResponse_Exit:
		if !s.follow {
			return event{}, guestFault("an exit that was not asked for")
		}
		return event{kind: eventEnd, exit: e.Exit}, nil
	}
	return event{}, guestFault("an event that has no place in the stream")
}

func guestFault(cause string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeGuestFault, Message: "the guest's agent answered something that makes no sense",
		Cause: cause, Remedy: "nothing of this sandbox can be trusted any more; delete it"}
}
