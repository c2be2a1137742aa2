package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

const testToken = "0123456789abcdef0123456789abcdef"

// nobody is the user of tests that need another one. It exists nowhere but as a uid.
const nobody = "65534"

// recorder is a Machine that remembers what it was told.
type recorder struct {
	hostname atomic.Value
	clock    atomic.Value
	entropy  atomic.Int64
	inits    atomic.Int64
	ahead    atomic.Int64 // how far the clock is ahead
	off      chan struct{}
}

func (m *recorder) SetHostname(name string) error { m.inits.Add(1); m.hostname.Store(name); return nil }
func (m *recorder) Now() time.Time                { return time.Now().Add(time.Duration(m.ahead.Load())) }
func (m *recorder) SetClock(now time.Time) error {
	m.clock.Store(now)
	m.ahead.Store(int64(time.Until(now)))
	return nil
}
func (m *recorder) AdjustClock(by time.Duration) error { m.ahead.Add(int64(by)); return nil }
func (m *recorder) AddEntropy(seed []byte) error       { m.entropy.Store(int64(len(seed))); return nil }
func (m *recorder) Shutdown()                          { close(m.off) }
func (m *recorder) UserGroup() int                     { return -1 }

// fixture is a running server with a client.
type fixture struct {
	t       *testing.T
	server  *Server
	machine *recorder
	http    *http.Client
	agent   agentv1connect.AgentServiceClient
	dir     string // readable and enterable by everybody
}

// publicDir makes a directory that everybody may enter, unlike t.TempDir.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newFixture serves a Server over a socket, h2c, as the gateway sees it.
func newFixture(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, machine: &recorder{off: make(chan struct{})}, dir: publicDir(t)}
	cfg := Config{Token: testToken, Version: "test", Stages: []Stage{{Name: "boot", Took: 1500 * time.Microsecond}},
		Machine: f.machine, Logger: slog.New(slog.DiscardHandler), Etc: filepath.Join(f.dir, "etc")}
	f.write("etc/passwd", "root:x:0:0:root:"+f.dir+":/bin/sh\nworker:x:65534:65534::"+f.dir+":/bin/sh\n")
	f.write("etc/group", "root:x:0:\nextra:x:4242:other,worker\n")
	if change != nil {
		change(&cfg)
	}
	var err error
	if f.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(f.dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, f.server.Handler()) }()
	f.http = rpc.HTTPClient(rpc.DialUnix(filepath.Join(f.dir, "s")))
	t.Cleanup(func() {
		f.server.Close()
		f.http.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	f.agent = f.client(testToken)
	return f
}

// client makes a Connect client with a token.
func (f *fixture) client(token string) agentv1connect.AgentServiceClient {
	return agentv1connect.NewAgentServiceClient(&http.Client{Transport: withToken{f.http.Transport, token}}, rpc.BaseURL,
		connect.WithInterceptors(rpc.Errors()))
}

type withToken struct {
	next  http.RoundTripper
	token string
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return w.next.RoundTrip(r)
}

// write makes a file below the fixture's directory.
func (f *fixture) write(name, content string) string {
	f.t.Helper()
	p := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
	return p
}

// create registers a process.
func (f *fixture) create(spec *agentv1.ProcessSpec) string {
	f.t.Helper()
	id := string(sandbox.NewProcessID())
	if _, err := f.agent.CreateProcess(f.t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: spec})); err != nil {
		f.t.Fatalf("create %v: %v", spec.Argv, err)
	}
	return id
}

// start registers and starts a process.
func (f *fixture) start(spec *agentv1.ProcessSpec) string {
	f.t.Helper()
	id := f.create(spec)
	if _, err := f.agent.StartProcess(f.t.Context(), connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id})); err != nil {
		f.t.Fatalf("start %v: %v", spec.Argv, err)
	}
	return id
}

// shell is a specification that runs a script.
func shell(script string) *agentv1.ProcessSpec {
	return &agentv1.ProcessSpec{Argv: []string{"/bin/sh", "-c", script}}
}

// result is what came of a process.
type result struct {
	stdout, stderr string
	exit           *agentv1.Process
	gaps           int
}

func bothStreams() []*agentv1.StreamPosition {
	return []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}
}

// attach attaches with start and follow and reads to the end.
func (f *fixture) attach(id string) result {
	f.t.Helper()
	stream, err := f.agent.Attach(f.t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Start: true, Follow: true, Positions: bothStreams()}))
	if err != nil {
		f.t.Fatal(err)
	}
	defer stream.Close()
	return f.collect(stream)
}

// collect reads a stream to its end and checks that started is first and exit last.
func (f *fixture) collect(stream *connect.ServerStreamForClient[agentv1.AttachResponse]) result {
	f.t.Helper()
	var r result
	first := true
	for stream.Receive() {
		m := stream.Msg()
		if (m.GetStarted() != nil) != first {
			f.t.Fatalf("event %v, first: %v", m, first)
		}
		if r.exit != nil {
			f.t.Fatalf("event %v after exit", m)
		}
		first = false
		switch d := m.GetData(); {
		case d.GetStream() == agentv1.OutputStream_OUTPUT_STREAM_STDOUT:
			r.stdout += string(d.Data)
		case d.GetStream() == agentv1.OutputStream_OUTPUT_STREAM_STDERR:
			r.stderr += string(d.Data)
		}
		if m.GetGap() != nil {
			r.gaps++
		}
		r.exit = m.GetExit()
	}
	if err := stream.Err(); err != nil {
		f.t.Fatalf("attach: %v", rpc.FromConnect(err))
	}
	return r
}

// run creates, starts and follows a process.
func (f *fixture) run(spec *agentv1.ProcessSpec) result {
	f.t.Helper()
	return f.attach(f.create(spec))
}

// get returns a process as it is now.
func (f *fixture) get(id string) *agentv1.Process {
	f.t.Helper()
	res, err := f.agent.GetProcess(f.t.Context(), connect.NewRequest(&agentv1.GetProcessRequest{ProcessId: id}))
	if err != nil {
		f.t.Fatal(err)
	}
	return res.Msg.Process
}

// wantCode fails the test unless err has the code.
func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(rpc.FromConnect(err)); got != code {
		t.Errorf("code %q (%v), want %q", got, err, code)
	}
}

func TestEveryRouteNeedsTheToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, token := range []string{"", "wrong", testToken[:len(testToken)-1], testToken + "0"} {
		_, err := f.client(token).Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{}))
		if connect.CodeOf(err) == 0 && err == nil {
			t.Errorf("Hello with token %q succeeded", token)
		}
		for _, path := range []string{"/files?path=/etc/passwd", "/", agentv1connect.AgentServiceAttachProcedure} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rpc.BaseURL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := withToken{f.http.Transport, token}.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized {
				t.Errorf("GET %s with token %q: %d", path, token, res.StatusCode)
			}
		}
	}
}

func TestNewRefusesBadConfig(t *testing.T) {
	t.Parallel()
	good := Config{Token: testToken, Machine: &recorder{}, Logger: slog.New(slog.DiscardHandler)}
	for name, change := range map[string]func(*Config){
		"short token": func(c *Config) { c.Token = "short" },
		"no machine":  func(c *Config) { c.Machine = nil },
		"no logger":   func(c *Config) { c.Logger = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestHelloAndInit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	hello, err := f.agent.Hello(t.Context(), connect.NewRequest(&agentv1.HelloRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if h := hello.Msg; h.Version != "test" || len(h.BootId) != 32 || len(h.Stages) != 1 || h.Stages[0].Ms != 1.5 {
		t.Errorf("hello %v", h)
	}
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	call := func(generation int64, hostname string, entropy int) error {
		_, err := f.agent.Init(t.Context(), connect.NewRequest(&agentv1.InitRequest{Generation: generation, Hostname: hostname,
			WallTime: timestamppb.New(now), Entropy: make([]byte, entropy)}))
		return err
	}
	wantCode(t, call(0, "box", 64), sandbox.CodeInvalidArgument)
	wantCode(t, call(2, "Box!", 64), sandbox.CodeInvalidArgument)
	wantCode(t, call(2, "box", 16), sandbox.CodeInvalidArgument)
	wantCode(t, call(2, "box", 64), "")
	now = now.Add(time.Hour) // the machine goes on after a pause
	wantCode(t, call(2, "other", 32), "")
	wantCode(t, call(1, "box", 64), sandbox.CodeInvalidState)
	if n := f.machine.inits.Load(); n != 1 {
		t.Errorf("the machine was named %d times", n)
	}
	if f.machine.hostname.Load() != "box" || !f.machine.clock.Load().(time.Time).Equal(now) || f.machine.entropy.Load() != 32 {
		t.Errorf("the machine got %v, %v, %d", f.machine.hostname.Load(), f.machine.clock.Load(), f.machine.entropy.Load())
	}
	wantCode(t, call(3, "later", 32), "")
	if f.machine.hostname.Load() != "later" {
		t.Error("a later generation did not get its host name")
	}
}

func TestAdjustClock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	call := func(by *durationpb.Duration) (time.Duration, error) {
		res, err := f.agent.AdjustClock(t.Context(), connect.NewRequest(&agentv1.AdjustClockRequest{By: by}))
		if err != nil {
			return 0, err
		}
		return time.Until(res.Msg.GetWallTime().AsTime()).Round(time.Minute), nil
	}
	for _, row := range []struct {
		by   *durationpb.Duration
		want time.Duration // ahead of the host's
	}{{nil, 0}, {durationpb.New(time.Hour), time.Hour}, {durationpb.New(-2 * time.Hour), -time.Hour}, {durationpb.New(0), -time.Hour}} {
		if ahead, err := call(row.by); err != nil || ahead != row.want {
			t.Errorf("by %v: %v ahead, %v", row.by, ahead, err)
		}
	}
	_, err := call(&durationpb.Duration{Seconds: 1, Nanos: -1})
	wantCode(t, err, sandbox.CodeInvalidArgument)
}

func TestShutdownComesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for range 2 {
		if _, err := f.agent.Shutdown(t.Context(), connect.NewRequest(&agentv1.ShutdownRequest{})); err != nil {
			t.Fatalf("no answer: %v", err)
		}
	}
	<-f.machine.off
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	_, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{
		ProcessId: string(sandbox.NewProcessID()), Data: make([]byte, maxRequestBytes+1)}))
	if err == nil || sandbox.CodeOf(err) == sandbox.CodeNotFound {
		t.Errorf("a message over the bound was read: %v", err)
	}
	for name, spec := range map[string]*agentv1.ProcessSpec{
		"no argv":        {},
		"empty argv[0]":  {Argv: []string{""}},
		"NUL in argv":    {Argv: []string{"a\x00b"}},
		"long argument":  {Argv: []string{"a", strings.Repeat("x", maxArgument+1)}},
		"many arguments": {Argv: append([]string{"a"}, make([]string, maxArguments/9)...)},
		"env name":       {Argv: []string{"a"}, Env: map[string]string{"A=B": "c"}},
		"empty env name": {Argv: []string{"a"}, Env: map[string]string{"": "c"}},
		"NUL in env":     {Argv: []string{"a"}, Env: map[string]string{"A": "\x00"}},
		"NUL in cwd":     {Argv: []string{"a"}, Cwd: "/\x00"},
		"long cwd":       {Argv: []string{"a"}, Cwd: strings.Repeat("/a", 3000)},
		"long user":      {Argv: []string{"a"}, User: strings.Repeat("u", 300)},
		"timeout":        {Argv: []string{"a"}, TimeoutSeconds: -1},
	} {
		_, err := f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{
			ProcessId: string(sandbox.NewProcessID()), Spec: spec}))
		if got := sandbox.CodeOf(err); got != sandbox.CodeInvalidArgument {
			t.Errorf("%s: %q (%v)", name, got, err)
		}
	}
	for _, id := range []string{"", "proc_", "../../etc", "proc_ABCDEFGHIJKLMNOPQRST"} {
		_, err := f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id, Spec: shell("true")}))
		wantCode(t, err, sandbox.CodeInvalidArgument)
	}
}

func TestStreamsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Limits.Streams = 2 })
	var open []*connect.ServerStreamForClient[agentv1.WatchProcessesResponse]
	for range 2 {
		w, err := f.agent.WatchProcesses(t.Context(), connect.NewRequest(&agentv1.WatchProcessesRequest{}))
		if err != nil || !w.Receive() {
			t.Fatalf("watch: %v", err)
		}
		open = append(open, w)
	}
	third, err := f.agent.WatchProcesses(t.Context(), connect.NewRequest(&agentv1.WatchProcessesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if third.Receive() {
		t.Error("a third stream was opened")
	}
	wantCode(t, third.Err(), sandbox.CodeCapacity)
	for _, w := range open {
		w.Close()
	}
}

// TestCloseEndsStreams: a closed server ends processes and streams.
func TestCloseEndsStreams(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.start(shell("exec sleep 1000"))
	stream, err := f.agent.Attach(t.Context(), connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Follow: true}))
	if err != nil || !stream.Receive() {
		t.Fatalf("attach: %v", err)
	}
	f.server.Close()
	for stream.Receive() {
	}
	if err := stream.Err(); err != nil && !errors.Is(err, io.EOF) {
		wantCode(t, err, sandbox.CodeUnavailable)
	}
	p, err := f.server.table.get(id)
	if err != nil || !p.ended() {
		t.Errorf("the process runs on: %v", err)
	}
	_, err = f.agent.CreateProcess(t.Context(), connect.NewRequest(&agentv1.CreateProcessRequest{
		ProcessId: string(sandbox.NewProcessID()), Spec: shell("true")}))
	wantCode(t, err, sandbox.CodeUnavailable)
}
