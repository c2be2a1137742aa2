package guest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

const token = "fedcba9876543210fedcba9876543210"

// quietMachine changes nothing.
type quietMachine struct{ off chan struct{} }

func (quietMachine) SetHostname(string) error        { return nil }
func (quietMachine) Now() time.Time                  { return time.Now() }
func (quietMachine) AdjustClock(time.Duration) error { return nil }
func (quietMachine) SetClock(time.Time) error        { return nil }
func (quietMachine) AddEntropy([]byte) error         { return nil }
func (m quietMachine) Shutdown()                     { close(m.off) }
func (quietMachine) UserGroup() int                  { return -1 }

// realAgent serves an agent of this process on l until the test ends.
func realAgent(t *testing.T, l net.Listener) quietMachine {
	t.Helper()
	return limitedAgent(t, l, agent.Limits{})
}

func limitedAgent(t *testing.T, l net.Listener, limits agent.Limits) quietMachine {
	t.Helper()
	m := quietMachine{off: make(chan struct{})}
	s, err := agent.New(agent.Config{Limits: limits, Token: token, Version: "1.2.3", Stages: []agent.Stage{{Name: "boot", Took: time.Second}},
		Machine: m, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, s.Handler()) }()
	t.Cleanup(func() {
		s.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return m
}

func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, path
}

func connect(t *testing.T, path, token string) *guest.Client {
	t.Helper()
	c := guest.NewClient(guest.Config{Dial: rpc.DialUnix(path), Token: token})
	t.Cleanup(c.Close)
	return c
}

// pair is a client and a real agent.
func pair(t *testing.T) (*guest.Client, quietMachine) {
	t.Helper()
	l, path := listen(t)
	m := realAgent(t, l)
	return connect(t, path, token), m
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != code {
		t.Errorf("code %q (%v), want %q", got, err, code)
	}
}

func outputs() []*agentv1.StreamPosition {
	return []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}
}

// TestCommandSession walks one command through every call.
func TestCommandSession(t *testing.T) {
	t.Parallel()
	c, m := pair(t)
	ctx := t.Context()
	hello, err := c.AwaitHello(ctx)
	if err != nil || hello.Version != "1.2.3" || len(hello.Stages) != 1 {
		t.Fatalf("%v, %v", hello, err)
	}
	if err := c.Init(ctx, &agentv1.InitRequest{Generation: 1, Hostname: "box", WallTime: timestamppb.Now(), Entropy: make([]byte, 64)}); err != nil {
		t.Fatal(err)
	}
	watch, err := c.WatchProcesses(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	if e, err := watch.Receive(); err != nil || !e.GetSynced() {
		t.Fatalf("%v, %v", e, err)
	}
	id := sandbox.NewProcessID()
	spec := &agentv1.ProcessSpec{Argv: []string{"sh", "-c", "cat; exit 3"}, Stdin: true}
	if p, err := c.CreateProcess(ctx, id, spec); err != nil || p.State != agentv1.ProcessState_PROCESS_STATE_CREATED {
		t.Fatalf("%v, %v", p, err)
	}
	_, err = c.CreateProcess(ctx, id, &agentv1.ProcessSpec{Argv: []string{"other"}})
	wantCode(t, err, sandbox.CodeIdempotencyConflict)
	if p, err := c.StartProcess(ctx, id); err != nil || p.Pid <= 0 {
		t.Fatalf("%v, %v", p, err)
	}
	if p, err := c.SignalProcess(ctx, id, "SIGCONT"); err != nil || p.State != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		t.Fatalf("%v, %v", p, err)
	}
	zero := uint64(0)
	if n, err := c.WriteStdin(ctx, &agentv1.WriteStdinRequest{ProcessId: string(id), Data: []byte("hello"), Eof: true, Offset: &zero}); n != 5 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	out, exit := follow(t, c, id)
	if out != "hello" || exit.GetExitCode() != 3 {
		t.Errorf("%q, %v", out, exit)
	}
	if p, err := c.GetProcess(ctx, id); err != nil || p.ExitCode != 3 || p.StdoutBytes != 5 {
		t.Errorf("%v, %v", p, err)
	}
	for ended := false; !ended; {
		e, err := watch.Receive()
		if err != nil {
			t.Fatal(err)
		}
		ended = e.GetProcess().GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED
	}
	if err := c.AckProcesses(ctx, false, id); err != nil {
		t.Error(err)
	}
	_, err = c.GetProcess(ctx, sandbox.NewProcessID())
	wantCode(t, err, sandbox.CodeNotFound)
	if err := c.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-m.off
}

// TestGivenUp: a process that is acknowledged before its start has failed, in a way the host accepts.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	for expired, code := range map[bool]string{false: "canceled", true: "expired"} {
		id := sandbox.NewProcessID()
		if _, err := c.CreateProcess(t.Context(), id, &agentv1.ProcessSpec{Argv: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
		if err := c.AckProcesses(t.Context(), expired, id); err != nil {
			t.Fatal(err)
		}
		p, err := c.GetProcess(t.Context(), id)
		if err != nil || p.State != agentv1.ProcessState_PROCESS_STATE_FAILED || p.ErrorCode != code {
			t.Errorf("expired %v: %v, %v", expired, p, err)
		}
	}
}

// follow attaches and reads to the end.
func follow(t *testing.T, c *guest.Client, id sandbox.ProcessID) (string, *agentv1.Process) {
	t.Helper()
	a, err := c.Attach(t.Context(), &agentv1.AttachRequest{ProcessId: string(id), Start: true, Follow: true, Positions: outputs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var out bytes.Buffer
	var exit *agentv1.Process
	for {
		e, err := a.Receive()
		if errors.Is(err, io.EOF) {
			return out.String(), exit
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(e.GetData().GetData())
		exit = e.GetExit()
	}
}

// TestLargeOutputManyReaders: several readers with different offsets get the same bytes.
func TestLargeOutputManyReaders(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	id := sandbox.NewProcessID()
	if _, err := c.CreateProcess(t.Context(), id, &agentv1.ProcessSpec{Argv: []string{"head", "-c", "4000000", "/dev/urandom"}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	outs := make([]string, 3)
	for i := range outs {
		wg.Go(func() { outs[i], _ = follow(t, c, id) })
	}
	wg.Wait()
	for _, o := range outs {
		if len(o) != 4_000_000 || o != outs[0] {
			t.Errorf("a reader got %d bytes", len(o))
		}
	}
}

// TestReaderThatStops: a reader that does not read holds a process back for a while, not for ever, and is told what
// it has missed.
func TestReaderThatStops(t *testing.T) {
	t.Parallel()
	l, path := listen(t)
	limitedAgent(t, l, agent.Limits{SpoolPerStream: 64 << 10, ReaderPatience: 200 * time.Millisecond})
	c := connect(t, path, token)
	const size = 20_000_000
	id := sandbox.NewProcessID()
	if _, err := c.CreateProcess(t.Context(), id, &agentv1.ProcessSpec{Argv: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}}); err != nil {
		t.Fatal(err)
	}
	a, err := c.Attach(t.Context(), &agentv1.AttachRequest{ProcessId: string(id), Start: true, Follow: true, Positions: outputs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	w, err := c.WatchProcesses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for ended := false; !ended; {
		e, err := w.Receive()
		if err != nil {
			t.Fatal(err)
		}
		ended = e.GetProcess().GetState() == agentv1.ProcessState_PROCESS_STATE_EXITED
	}
	var got, missed uint64
	for {
		e, err := a.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got += uint64(len(e.GetData().GetData()))
		missed += e.GetGap().GetTo() - e.GetGap().GetFrom()
	}
	if got+missed != size || missed == 0 {
		t.Errorf("%d bytes and %d missed, of %d", got, missed, size)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	path := filepath.Join(t.TempDir(), "file")
	query := url.Values{"path": {path}}
	content := make([]byte, 2<<20+5)
	rand.Read(content)
	sum := sha256.Sum256(content)
	for _, length := range []int64{int64(len(content)), -1} {
		s, err := c.PutFile(t.Context(), query, bytes.NewReader(content), length)
		if err != nil || s.SizeBytes != int64(len(content)) || s.SHA256 != hex.EncodeToString(sum[:]) || s.Path != path {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	file, err := c.GetFile(t.Context(), query, "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(file.Body)
	if cerr := file.Body.Close(); err != nil || cerr != nil || file.Size != int64(len(content)) || !bytes.Equal(got, content) {
		t.Errorf("size %d, %d bytes, %v", file.Size, len(got), err)
	}
	if s, err := c.PutFile(t.Context(), query, bytes.NewReader(nil), 0); err != nil || s.SizeBytes != 0 {
		t.Errorf("empty file: %+v, %v", s, err)
	}
	_, err = c.GetFile(t.Context(), url.Values{"path": {path + "/none"}}, "")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = c.PutFile(t.Context(), url.Values{"path": {filepath.Dir(path)}}, bytes.NewReader(content), int64(len(content)))
	wantCode(t, err, sandbox.CodeIsDirectory)
	_, err = c.GetFile(t.Context(), url.Values{"path": {"x"}, "more": {"y"}}, "")
	wantCode(t, err, sandbox.CodeUnknownField)
	_, err = c.PutFile(t.Context(), query, io.MultiReader(bytes.NewReader(content), failing{}), -1)
	wantCode(t, err, sandbox.CodeInvalidArgument)
	if st, err := os.Stat(path); err != nil || st.Size() != 0 {
		t.Errorf("a body that failed left %v, %v", st, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the client is gone") }

// TestAwaitHelloWaits: first nobody listens, then the agent comes up.
func TestAwaitHelloWaits(t *testing.T) {
	t.Parallel()
	l, path := listen(t)
	var mu sync.Mutex
	attempts := 0
	up := make(chan struct{})
	c := guest.NewClient(guest.Config{Token: token, Dial: func(ctx context.Context) (net.Conn, error) {
		mu.Lock()
		attempts++
		n := attempts
		mu.Unlock()
		switch {
		case n == 2: // a packet that is lost: the attempt must not last longer than it may
			<-ctx.Done()
			return nil, ctx.Err()
		case n < 5:
			return nil, errors.New("connection refused")
		case n == 5:
			close(up)
		}
		return rpc.DialUnix(path)(ctx)
	}})
	t.Cleanup(c.Close)
	go func() { <-up }()
	realAgent(t, l)
	if h, err := c.AwaitHello(t.Context()); err != nil || h.BootId == "" {
		t.Fatalf("%v, %v", h, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if attempts != 5 {
		t.Errorf("%d attempts, want 5: the connection that answered is the one to use", attempts)
	}
}

// TestAwaitHelloEnds with its context, a wrong token, or the client's end.
func TestAwaitHelloEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := connect(t, "/no/such/socket", token).AwaitHello(ctx)
	wantCode(t, err, sandbox.CodeGuestNotReady)
	l, path := listen(t)
	realAgent(t, l)
	_, err = connect(t, path, "wrong").AwaitHello(t.Context())
	wantCode(t, err, sandbox.CodeGuestFault)
	c := connect(t, path, token)
	c.Close()
	_, err = c.AwaitHello(t.Context())
	wantCode(t, err, sandbox.CodeUnavailable)
}

// TestCloseEndsEverything: streams and calls end when their client is closed.
func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	watch, err := c.WatchProcesses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Receive(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := watch.Receive()
		ended <- err
	}()
	c.Close()
	wantCode(t, <-ended, sandbox.CodeUnavailable)
	_, err = c.Hello(t.Context())
	wantCode(t, err, sandbox.CodeUnavailable)
}

// TestAgentGoesAway: calls to an agent that is gone say so, and work again when it is back.
func TestAgentGoesAway(t *testing.T) {
	t.Parallel()
	l, path := listen(t)
	conns := make(chan net.Conn, 16)
	c := guest.NewClient(guest.Config{Token: token, Dial: func(ctx context.Context) (net.Conn, error) {
		conn, err := rpc.DialUnix(path)(ctx)
		if err == nil {
			conns <- conn
		}
		return conn, err
	}})
	t.Cleanup(c.Close)
	realAgent(t, l)
	id := sandbox.NewProcessID()
	if _, err := c.CreateProcess(t.Context(), id, &agentv1.ProcessSpec{Argv: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	a, err := c.Attach(t.Context(), &agentv1.AttachRequest{ProcessId: string(id), Start: true, Follow: true, Positions: outputs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Receive(); err != nil {
		t.Fatal(err)
	}
	(<-conns).Close()
	_, err = a.Receive()
	wantCode(t, err, sandbox.CodeUnavailable)
	if p, err := c.GetProcess(t.Context(), id); err != nil || p.State != agentv1.ProcessState_PROCESS_STATE_RUNNING {
		t.Errorf("after the connection was lost: %v, %v", p, err)
	}
}

// TestCanceled: a caller that gives up gets canceled, not a fault of the guest.
func TestCanceled(t *testing.T) {
	t.Parallel()
	c, _ := pair(t)
	id := sandbox.NewProcessID()
	if _, err := c.CreateProcess(t.Context(), id, &agentv1.ProcessSpec{Argv: []string{"sleep", strconv.Itoa(1000)}, Stdin: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartProcess(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := make(chan error, 1)
	go func() {
		_, err := c.WriteStdin(ctx, &agentv1.WriteStdinRequest{ProcessId: string(id), Data: make([]byte, 1<<20)})
		stuck <- err
	}()
	cancel()
	wantCode(t, <-stuck, sandbox.CodeCanceled)
}
