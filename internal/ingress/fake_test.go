package ingress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	stdout = agentv1.OutputStream_OUTPUT_STREAM_STDOUT
	stderr = agentv1.OutputStream_OUTPUT_STREAM_STDERR
	pty    = agentv1.OutputStream_OUTPUT_STREAM_PTY
)

// fakeGuest plays one process whose output, end and faults a test decides.
type fakeGuest struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change
	proc     *agentv1.Process
	out      map[agentv1.OutputStream][]byte
	dropped  map[agentv1.OutputStream]int // bytes gone from the front
	stdin    bytes.Buffer
	signals  []string
	sizes    []string
	streams  int   // open
	read     int   // bytes handed to streams
	attaches int   // calls
	broken   error // every call and stream fails with it
	hold     chan struct{}
	script   []*agentv1.AttachResponse // when set, streams send exactly this
}

func newFakeGuest(id sandbox.ProcessID) *fakeGuest {
	return &fakeGuest{changed: make(chan struct{}), out: map[agentv1.OutputStream][]byte{}, dropped: map[agentv1.OutputStream]int{},
		proc: &agentv1.Process{ProcessId: string(id), State: agentv1.ProcessState_PROCESS_STATE_CREATED}}
}

func (g *fakeGuest) edit(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.proc.StdoutBytes, g.proc.StderrBytes, g.proc.PtyBytes = uint64(len(g.out[stdout])), uint64(len(g.out[stderr])), uint64(len(g.out[pty]))
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *fakeGuest) print(s agentv1.OutputStream, text string) {
	g.edit(func() { g.out[s] = append(g.out[s], text...) })
}

func (g *fakeGuest) exit(code int32) {
	g.edit(func() { g.proc.State, g.proc.ExitCode = agentv1.ProcessState_PROCESS_STATE_EXITED, code })
}

func (g *fakeGuest) state() *agentv1.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return proto.CloneOf(g.proc)
}

func (g *fakeGuest) GetProcess(context.Context, sandbox.ProcessID) (*agentv1.Process, error) {
	return g.state(), nil
}

func (g *fakeGuest) SignalProcess(_ context.Context, _ sandbox.ProcessID, signal string) error {
	if signal == "SIGNOPE" {
		return sandbox.Errorf(sandbox.CodeInvalidArgument, "the signal is not known")
	}
	g.edit(func() { g.signals = append(g.signals, signal) })
	return nil
}

func (g *fakeGuest) ResizeProcess(_ context.Context, _ sandbox.ProcessID, size *agentv1.TerminalSize) error {
	g.edit(func() { g.sizes = append(g.sizes, fmt.Sprintf("%dx%d", size.GetCols(), size.GetRows())) })
	return nil
}

func (g *fakeGuest) WriteStdin(ctx context.Context, req *agentv1.WriteStdinRequest) (uint64, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	var err error
	g.edit(func() {
		if err = g.broken; err != nil {
			return
		}
		if g.proc.StdinClosed {
			err = sandbox.Errorf(sandbox.CodeStdinClosed, "standard input is closed")
			return
		}
		g.stdin.Write(req.GetData())
		g.proc.StdinBytes += uint64(len(req.GetData()))
		g.proc.StdinClosed = req.GetEof()
	})
	return g.state().GetStdinBytes(), err
}

func (g *fakeGuest) Attach(ctx context.Context, req *agentv1.AttachRequest) (Stream, error) {
	var err error
	g.edit(func() {
		g.attaches++
		if err = g.broken; err != nil {
			return
		}
		g.streams++
		if req.GetStart() && g.proc.State == agentv1.ProcessState_PROCESS_STATE_CREATED {
			g.proc.State, g.proc.Pid = agentv1.ProcessState_PROCESS_STATE_RUNNING, 42
		}
	})
	if err != nil {
		return nil, err
	}
	next := map[agentv1.OutputStream]int{}
	for _, p := range req.GetPositions() {
		next[p.GetStream()] = int(p.GetOffset())
	}
	return &fakeStream{g: g, ctx: ctx, follow: req.GetFollow(), next: next}, nil
}

type fakeStream struct {
	g      *fakeGuest
	ctx    context.Context
	follow bool
	begun  bool
	sent   int
	next   map[agentv1.OutputStream]int
	once   sync.Once
}

func (s *fakeStream) Close() { s.once.Do(func() { s.g.edit(func() { s.g.streams-- }) }) }

func (s *fakeStream) Receive() (*agentv1.AttachResponse, error) {
	for {
		s.g.mu.Lock()
		res, err := s.take()
		changed := s.g.changed
		s.g.mu.Unlock()
		if res != nil || err != nil {
			return res, err
		}
		select {
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		case <-changed:
		}
	}
}

func (s *fakeStream) take() (*agentv1.AttachResponse, error) {
	if s.g.broken != nil {
		return nil, s.g.broken
	}
	if s.g.script != nil {
		if s.sent == len(s.g.script) {
			return nil, io.EOF
		}
		s.sent++
		return s.g.script[s.sent-1], nil
	}
	if !s.begun {
		s.begun = true
		return startedEvent(proto.CloneOf(s.g.proc)), nil
	}
	for _, st := range []agentv1.OutputStream{stdout, stderr, pty} {
		pos, asked := s.next[st]
		if !asked {
			continue
		}
		if gone := s.g.dropped[st]; pos < gone {
			s.next[st] = gone
			return gapEvent(st, uint64(pos), uint64(gone)), nil
		}
		if out := s.g.out[st]; pos < len(out) {
			end := min(len(out), pos+64<<10)
			s.next[st] = end
			s.g.read += end - pos
			return dataEvent(st, uint64(pos), out[pos:end]), nil
		}
	}
	if !s.follow {
		return nil, io.EOF
	}
	if s.g.proc.State == agentv1.ProcessState_PROCESS_STATE_EXITED || s.g.proc.State == agentv1.ProcessState_PROCESS_STATE_FAILED {
		return exitEvent(proto.CloneOf(s.g.proc)), nil
	}
	return nil, nil
}

func startedEvent(p *agentv1.Process) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: p}}
}

func exitEvent(p *agentv1.Process) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: p}}
}

func dataEvent(s agentv1.OutputStream, offset uint64, data []byte) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{
		Data: &agentv1.AttachResponse_Data{Stream: s, Offset: offset, Data: data}}}
}

func gapEvent(s agentv1.OutputStream, from, to uint64) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap_{
		Gap: &agentv1.AttachResponse_Gap{Stream: s, From: from, To: to}}}
}

// lockedBuffer collects log output.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// plane is a data plane with one session over a fake guest.
type plane struct {
	signer  *auth.Signer
	claims  auth.AttachClaims
	guest   *fakeGuest
	life    context.Context
	end     context.CancelCauseFunc
	server  *httptest.Server
	log     *lockedBuffer
	faulty  bool // the backend panics
	handler *Handler
}

func newPlane(t *testing.T, limits Limits) *plane {
	t.Helper()
	p := preparePlane(t, limits)
	p.server = httptest.NewUnstartedServer(p.handler)
	p.server.Config = p.httpServer()
	p.server.Start()
	t.Cleanup(func() {
		p.end(ErrRestart)
		p.server.Close()
		p.guest.await(t, "no agent stream is left open", func() bool { return p.guest.streams == 0 })
	})
	return p
}

// preparePlane makes a plane without a server.
func preparePlane(t *testing.T, limits Limits) *plane {
	t.Helper()
	p := &plane{signer: auth.NewSigner(), log: &lockedBuffer{}, claims: auth.AttachClaims{CommandID: sandbox.NewCommandID(),
		SandboxID: sandbox.NewID(), ProcessID: sandbox.NewProcessID(), ExpiresAt: time.Now().Add(time.Hour)}}
	p.guest = newFakeGuest(p.claims.ProcessID)
	p.life, p.end = context.WithCancelCause(context.Background())
	logger := slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p.handler = New(Config{Backend: p, Logger: logger, Limits: limits})
	return p
}

// httpServer is a server whose own log is checked too.
func (p *plane) httpServer() *http.Server {
	return &http.Server{Handler: p.handler, ReadHeaderTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(p.handler.logger.Handler(), slog.LevelDebug)}
}

func (p *plane) VerifyAttach(token string) (auth.AttachClaims, error) {
	return auth.NewVerifier(p.signer.PublicKey()).VerifyAttach(token, time.Now())
}

func (p *plane) Session(c auth.AttachClaims) (Session, error) {
	if p.faulty {
		panic("a fault of ours")
	}
	if c.CommandID != p.claims.CommandID {
		return Session{}, sandbox.Errorf(sandbox.CodeNotFound, "no such session here")
	}
	return Session{SandboxID: c.SandboxID, CommandID: c.CommandID, ProcessID: c.ProcessID, Epoch: 3, Guest: p.guest, Life: p.life}, nil
}

func (p *plane) token(t *testing.T, change func(*auth.AttachClaims)) string {
	t.Helper()
	c := p.claims
	if change != nil {
		change(&c)
	}
	token, _, err := p.signer.SignAttach(c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
