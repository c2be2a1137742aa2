package guest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	connectrpc "connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	problemv1 "github.com/space-sandbox/space/api/proto/problem/v1"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// lyingAgent speaks the protocol and says what it likes.
type lyingAgent struct {
	agentv1connect.UnimplementedAgentServiceHandler
	hello   *agentv1.HelloResponse
	process *agentv1.Process
	clock   *timestamppb.Timestamp
	stdin   uint64
	fail    error
	attach  func(context.Context, *connectrpc.ServerStream[agentv1.AttachResponse]) error
	watch   func(*connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error
}

func (l *lyingAgent) Hello(context.Context, *connectrpc.Request[agentv1.HelloRequest]) (*connectrpc.Response[agentv1.HelloResponse], error) {
	return connectrpc.NewResponse(l.hello), l.fail
}

func (l *lyingAgent) AdjustClock(context.Context, *connectrpc.Request[agentv1.AdjustClockRequest]) (*connectrpc.Response[agentv1.AdjustClockResponse], error) {
	return connectrpc.NewResponse(&agentv1.AdjustClockResponse{WallTime: l.clock}), l.fail
}

func (l *lyingAgent) GetProcess(context.Context, *connectrpc.Request[agentv1.GetProcessRequest]) (*connectrpc.Response[agentv1.GetProcessResponse], error) {
	return connectrpc.NewResponse(&agentv1.GetProcessResponse{Process: l.process}), l.fail
}

func (l *lyingAgent) WriteStdin(context.Context, *connectrpc.Request[agentv1.WriteStdinRequest]) (*connectrpc.Response[agentv1.WriteStdinResponse], error) {
	return connectrpc.NewResponse(&agentv1.WriteStdinResponse{StdinBytes: l.stdin}), l.fail
}

func (l *lyingAgent) Attach(ctx context.Context, _ *connectrpc.Request[agentv1.AttachRequest], s *connectrpc.ServerStream[agentv1.AttachResponse]) error {
	return l.attach(ctx, s)
}

func (l *lyingAgent) WatchProcesses(_ context.Context, _ *connectrpc.Request[agentv1.WatchProcessesRequest], s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
	return l.watch(s)
}

func serveLiar(t *testing.T, l *lyingAgent) *guest.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(l))
	return serveHTTP(t, mux)
}

func badTime() *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: 1 << 60, Nanos: -1}
}

func running(id string) *agentv1.Process {
	return &agentv1.Process{ProcessId: id, State: agentv1.ProcessState_PROCESS_STATE_RUNNING, Pid: 7}
}

func started(id string) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: running(id)}}
}

func data(offset uint64, b []byte) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{Data: &agentv1.AttachResponse_Data{
		Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, Offset: offset, Data: b}}}
}

func gap(from, to uint64) *agentv1.AttachResponse {
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap_{Gap: &agentv1.AttachResponse_Gap{
		Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT, From: from, To: to}}}
}

func exited(id string, stdout uint64) *agentv1.AttachResponse {
	p := running(id)
	p.State, p.StdoutBytes = agentv1.ProcessState_PROCESS_STATE_EXITED, stdout
	return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: p}}
}

// TestLyingAttach: streams that break the promised order are faults; those that keep it pass.
func TestLyingAttach(t *testing.T) {
	t.Parallel()
	const id, other = "proc_aaaaaaaaaaaaaaaaaaaa", "proc_bbbbbbbbbbbbbbbbbbbb"
	stderrData := data(0, []byte("x"))
	stderrData.GetData().Stream = 9
	for name, c := range map[string]struct {
		events []*agentv1.AttachResponse
		good   bool
	}{
		"whole":            {[]*agentv1.AttachResponse{started(id), data(0, []byte("abc")), gap(3, 9), data(9, []byte("d")), exited(id, 10)}, true},
		"nothing":          {nil, false},
		"no exit":          {[]*agentv1.AttachResponse{started(id), data(0, []byte("abc"))}, false},
		"no started":       {[]*agentv1.AttachResponse{data(0, []byte("abc"))}, false},
		"started twice":    {[]*agentv1.AttachResponse{started(id), started(id)}, false},
		"another process":  {[]*agentv1.AttachResponse{started(other)}, false},
		"bytes again":      {[]*agentv1.AttachResponse{started(id), data(0, []byte("abc")), data(0, []byte("abc"))}, false},
		"bytes missing":    {[]*agentv1.AttachResponse{started(id), data(1, []byte("abc"))}, false},
		"no bytes":         {[]*agentv1.AttachResponse{started(id), data(0, nil)}, false},
		"gap backwards":    {[]*agentv1.AttachResponse{started(id), data(0, []byte("abc")), gap(3, 2)}, false},
		"gap too far":      {[]*agentv1.AttachResponse{started(id), gap(0, 1<<63)}, false},
		"overflow":         {[]*agentv1.AttachResponse{started(id), gap(0, 1<<62), data(1<<62, []byte("x"))}, false},
		"unknown stream":   {[]*agentv1.AttachResponse{started(id), stderrData}, false},
		"empty event":      {[]*agentv1.AttachResponse{started(id), {}}, false},
		"exit too early":   {[]*agentv1.AttachResponse{started(id), data(0, []byte("abc")), exited(id, 4)}, false},
		"exit not ended":   {[]*agentv1.AttachResponse{started(id), {Event: &agentv1.AttachResponse_Exit{Exit: running(id)}}}, false},
		"exit of another":  {[]*agentv1.AttachResponse{started(id), exited(other, 0)}, false},
		"data after exit":  {[]*agentv1.AttachResponse{started(id), exited(id, 0), data(0, []byte("x"))}, false},
		"exit, then again": {[]*agentv1.AttachResponse{started(id), exited(id, 0), exited(id, 0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := serveLiar(t, &lyingAgent{attach: func(_ context.Context, s *connectrpc.ServerStream[agentv1.AttachResponse]) error {
				for _, e := range c.events {
					if err := s.Send(e); err != nil {
						return err
					}
				}
				return nil
			}})
			a, err := client.Attach(t.Context(), &agentv1.AttachRequest{ProcessId: id, Follow: true, Positions: outputs()})
			n := 0
			for ; err == nil; n++ {
				_, err = a.Receive()
			}
			if c.good {
				if !errors.Is(err, io.EOF) || n != len(c.events)+1 {
					t.Errorf("%d events, %v", n, err)
				}
				return
			}
			wantCode(t, err, sandbox.CodeGuestFault)
		})
	}
}

// TestLyingAnswers: impossible processes, counts and texts are faults.
func TestLyingAnswers(t *testing.T) {
	t.Parallel()
	const id = sandbox.ProcessID("proc_aaaaaaaaaaaaaaaaaaaa")
	for name, change := range map[string]func(*agentv1.Process){
		"another id":   func(p *agentv1.Process) { p.ProcessId = "proc_bbbbbbbbbbbbbbbbbbbb" },
		"no id":        func(p *agentv1.Process) { p.ProcessId = "../../x" },
		"state":        func(p *agentv1.Process) { p.State = 99 },
		"no state":     func(p *agentv1.Process) { p.State = 0 },
		"pid":          func(p *agentv1.Process) { p.Pid = -5 },
		"exit code":    func(p *agentv1.Process) { p.State, p.ExitCode = 3, 70000 },
		"signal":       func(p *agentv1.Process) { p.State, p.ExitCode, p.Signal = 3, -1, "\x1b[2J" },
		"both":         func(p *agentv1.Process) { p.State, p.ExitCode, p.Signal = 3, 0, "SIGKILL" },
		"error code":   func(p *agentv1.Process) { p.State, p.ErrorCode = 4, "something_else" },
		"counts":       func(p *agentv1.Process) { p.StdoutBytes = 1 << 63 },
		"truncated":    func(p *agentv1.Process) { p.TruncatedBytes = 5 },
		"time":         func(p *agentv1.Process) { p.StartedAt = badTime() },
		"time nanos":   func(p *agentv1.Process) { p.EndedAt = badTime(); p.EndedAt.Seconds = 5 },
		"exited error": func(p *agentv1.Process) { p.State, p.ErrorCode = 3, "cwd_not_found" },
	} {
		p := running(string(id))
		change(p)
		_, err := serveLiar(t, &lyingAgent{process: p}).GetProcess(t.Context(), id)
		if sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, h := range []*agentv1.HelloResponse{
		{Version: "x\n", BootId: "aa"}, {Version: "1", BootId: "../"}, {Version: "1", BootId: "aa", Stages: make([]*agentv1.Stage, 40)},
		{Version: "1", BootId: "aa", Stages: []*agentv1.Stage{{Name: "boot", Ms: -1}}},
	} {
		_, err := serveLiar(t, &lyingAgent{hello: h}).Hello(t.Context())
		wantCode(t, err, sandbox.CodeGuestFault)
	}
	offset := uint64(3)
	for _, n := range []uint64{0, 3, 5, 1 << 63} {
		_, err := serveLiar(t, &lyingAgent{stdin: n}).WriteStdin(t.Context(), &agentv1.WriteStdinRequest{ProcessId: string(id), Data: []byte("x"), Offset: &offset})
		wantCode(t, err, sandbox.CodeGuestFault)
	}
}

// TestUnknownFieldsStay: what we do not know does not get further.
func TestUnknownFieldsStay(t *testing.T) {
	t.Parallel()
	p := running("proc_aaaaaaaaaaaaaaaaaaaa")
	p.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "smuggled"))
	got, err := serveLiar(t, &lyingAgent{process: p}).GetProcess(t.Context(), sandbox.ProcessID(p.ProcessId))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.ProtoReflect().GetUnknown()); n != 0 {
		t.Errorf("%d bytes of unknown fields", n)
	}
}

// TestLyingErrors: codes that an agent cannot know are faults, texts are cleaned and cut.
func TestLyingErrors(t *testing.T) {
	t.Parallel()
	fail := func(code, message string) error {
		e := connectrpc.NewError(connectrpc.CodeInternal, io.ErrNoProgress)
		d, err := connectrpc.NewErrorDetail(&problemv1.Problem{Code: code, Message: message})
		if err != nil {
			t.Fatal(err)
		}
		e.AddDetail(d)
		return e
	}
	for code, want := range map[string]sandbox.Code{
		"unauthenticated": sandbox.CodeGuestFault, "pool_full": sandbox.CodeGuestFault, "name_taken": sandbox.CodeGuestFault,
		"internal": sandbox.CodeGuestFault, "": sandbox.CodeGuestFault, "not_running": sandbox.CodeNotRunning,
	} {
		_, err := serveLiar(t, &lyingAgent{fail: fail(code, strings.Repeat("\x1b[31mred\n", 1000))}).Hello(t.Context())
		wantCode(t, err, want)
		if e := sandbox.AsError(err); len(e.Message)+len(e.Cause) > 4096 || strings.ContainsAny(e.Message+e.Cause, "\x1b\n") {
			t.Errorf("text of the guest: %q, %q", e.Message, e.Cause)
		}
	}
}

// TestLyingWatch: too many processes, synced twice, an end.
func TestLyingWatch(t *testing.T) {
	t.Parallel()
	process := func(s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
		return s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: running("proc_aaaaaaaaaaaaaaaaaaaa")}})
	}
	synced := func(s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
		return s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Synced{Synced: true}})
	}
	for name, c := range map[string]struct {
		watch func(*connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error
		code  sandbox.Code
	}{
		"endless before synced": {func(s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
			for {
				if err := process(s); err != nil {
					return err
				}
			}
		}, sandbox.CodeGuestFault},
		"synced twice": {func(s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
			if err := synced(s); err != nil {
				return err
			}
			return synced(s)
		}, sandbox.CodeGuestFault},
		"empty": {func(s *connectrpc.ServerStream[agentv1.WatchProcessesResponse]) error {
			return s.Send(&agentv1.WatchProcessesResponse{})
		}, sandbox.CodeGuestFault},
		"ends": {synced, sandbox.CodeUnavailable},
	} {
		w, err := serveLiar(t, &lyingAgent{watch: c.watch}).WatchProcesses(t.Context())
		for err == nil {
			_, err = w.Receive()
		}
		if sandbox.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLyingFiles: sizes and answers that cannot be.
func TestLyingFiles(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"not json": func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("ok")) },
		"other size": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"path":"/x","size_bytes":2,"sha256":"` + strings.Repeat("a", 64) + `"}`))
		},
		"no sum": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"path":"/x","size_bytes":1,"sha256":"zz"}`))
		},
		"too long": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"path":"` + strings.Repeat("/x", 100_000)))
		},
		"error without form": func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusNotFound) },
		"error of another status": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK + 300)
			_, _ = w.Write([]byte(`{"code":"not_found","message":"x"}`))
		},
		"error of the host": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInsufficientStorage)
			_, _ = w.Write([]byte(`{"code":"pool_full","message":"x"}`))
		},
	} {
		_, err := serveHTTP(t, h).PutFile(t.Context(), url.Values{"path": {"/x"}}, strings.NewReader("x"), 1)
		if sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %v", name, err)
		}
	}
	short := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("ten bytes."))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	f, err := short.GetFile(t.Context(), url.Values{"path": {"/x"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Body.Close()
	if _, err := io.Copy(io.Discard, f.Body); err == nil {
		t.Error("a file that was cut off looks whole")
	}
}

// TestLyingClocks: a time is a time or a fault; what it says is the guest's own affair.
func TestLyingClocks(t *testing.T) {
	t.Parallel()
	for name, clock := range map[string]*timestamppb.Timestamp{"none": nil, "bad": badTime()} {
		if _, err := serveLiar(t, &lyingAgent{clock: clock}).AdjustClock(t.Context(), 0); sandbox.CodeOf(err) != sandbox.CodeGuestFault {
			t.Errorf("%s: %v", name, err)
		}
	}
	last := &timestamppb.Timestamp{Seconds: 253402300799}
	if now, err := serveLiar(t, &lyingAgent{clock: last}).AdjustClock(t.Context(), -1<<63); err != nil || now.Year() != 9999 {
		t.Errorf("%v, %v", now, err)
	}
}
