package httpapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxExecOutput is where exec cuts each stream.
const maxExecOutput = 1 << 20

// CreateCommand makes a session.
func (f *Fake) CreateCommand(_ context.Context, call control.Call, ref string, spec sandbox.CommandSpec, start bool) (control.CreatedCommand, error) {
	p, again, err := f.newProcess(call, ref, spec)
	if err != nil {
		return control.CreatedCommand{}, err
	}
	if start {
		p.start(f.programs)
	}
	c := p.snapshot()
	return control.CreatedCommand{Command: c, Attach: f.attach(c.ID), Replayed: again}, nil
}

func (f *Fake) newProcess(call control.Call, ref string, spec sandbox.CommandSpec) (p *process, again bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, err := f.replay(call); err != nil || id != "" {
		return f.commands[sandbox.CommandID(id)], true, err
	}
	box := f.find(ref)
	switch {
	case box == nil:
		return nil, false, noSandbox(ref)
	case box.State != sandbox.StateRunning:
		return nil, false, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox does not run", Cause: string(box.State)}
	}
	env := maps.Clone(box.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, spec.Env)
	p = &process{changed: make(chan struct{}), env: env, stdinEOF: !spec.Stdin, signals: make(chan string, 1), steps: f.steps, done: f.done,
		cmd: sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: box.ID, ProcessID: sandbox.NewProcessID(), Spec: spec,
			State: sandbox.CommandCreated, CreatedAt: f.tick(), Epoch: 1}}
	p.now = func() time.Time { return time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC) }
	p.onChange = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notify()
	}
	f.commands[p.cmd.ID] = p
	f.cmdOrder = append(f.cmdOrder, p.cmd.ID)
	f.remember(call, string(p.cmd.ID))
	return p, false, nil
}

// Exec runs a session to its end.
func (f *Fake) Exec(ctx context.Context, call control.Call, ref string, spec sandbox.CommandSpec, stdin []byte) (control.ExecResult, error) {
	p, again, err := f.newProcess(call, ref, spec)
	if err != nil {
		return control.ExecResult{}, err
	}
	if !again && spec.Stdin {
		if err := p.input(stdin, true); err != nil {
			return control.ExecResult{}, err
		}
	}
	p.start(f.programs)
	c, err := f.GetCommand(ctx, p.cmd.ID, time.Hour)
	if err != nil {
		return control.ExecResult{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.ExecResult{Command: c, Replayed: again, Stdout: slices.Clone(p.stdout[:min(len(p.stdout), maxExecOutput)]),
		Stderr: slices.Clone(p.stderr[:min(len(p.stderr), maxExecOutput)])}, nil
}

func (f *Fake) process(id sandbox.CommandID) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.commands[id]; p != nil {
		return p, nil
	}
	return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such command", Cause: string(id)}
}

// GetCommand waits for the end of a session.
func (f *Fake) GetCommand(ctx context.Context, id sandbox.CommandID, wait time.Duration) (sandbox.Command, error) {
	p, err := f.process(id)
	if err != nil {
		return sandbox.Command{}, err
	}
	f.await(ctx, wait, func() bool { return p.snapshot().State.Ended() })
	return p.snapshot(), nil
}

// ListCommands filters by everything the filter has.
func (f *Fake) ListCommands(_ context.Context, ref string, filter control.CommandFilter) (control.Page[sandbox.Command], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	box := f.find(ref)
	if box == nil {
		return control.Page[sandbox.Command]{}, noSandbox(ref)
	}
	var items []sandbox.Command
	for _, id := range f.cmdOrder {
		c := f.commands[id].snapshot()
		if c.SandboxID == box.ID && (filter.Tag == "" || filter.Tag == c.Spec.Tag) && (filter.PID == 0 || filter.PID == c.PID) &&
			(len(filter.States) == 0 || slices.Contains(filter.States, c.State)) && c.CreatedAt.After(filter.CreatedAfter) {
			items = append(items, c)
		}
	}
	return page(items, filter.PageRequest, func(c sandbox.Command) string { return string(c.ID) }, func(c sandbox.Command) time.Time { return c.CreatedAt })
}

func (f *Fake) attach(id sandbox.CommandID) control.Attach {
	return control.Attach{URL: "ws" + f.dataURL[len("http"):] + "/v1/attach/" + string(id), Token: "token-" + string(id),
		ExpiresAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// AttachCommand gives a token.
func (f *Fake) AttachCommand(_ context.Context, _ auth.Principal, id sandbox.CommandID) (control.Attach, error) {
	if _, err := f.process(id); err != nil {
		return control.Attach{}, err
	}
	return f.attach(id), nil
}

// SignalCommand signals a session's program.
func (f *Fake) SignalCommand(_ context.Context, id sandbox.CommandID, signal string) (sandbox.Command, error) {
	p, err := f.process(id)
	if err != nil {
		return sandbox.Command{}, err
	}
	if err := p.signal(signal); err != nil {
		return sandbox.Command{}, err
	}
	return p.snapshot(), nil
}

// ResizeCommand notes the size.
func (f *Fake) ResizeCommand(_ context.Context, id sandbox.CommandID, size sandbox.TerminalSize) (sandbox.Command, error) {
	p, err := f.process(id)
	if err != nil {
		return sandbox.Command{}, err
	}
	if err := p.resize(size); err != nil {
		return sandbox.Command{}, err
	}
	return p.snapshot(), nil
}

// KillCommand is SIGKILL for one that runs, and gives up one that does not run yet.
func (f *Fake) KillCommand(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	p, err := f.process(id)
	if err != nil {
		return sandbox.Command{}, err
	}
	p.cancel()
	c, err := f.SignalCommand(ctx, id, "SIGKILL")
	if sandbox.CodeOf(err) == sandbox.CodeNotRunning {
		return f.GetCommand(ctx, id, 0)
	}
	return c, err
}

// Transcript gives what a recorded session has said on standard output, and its result.
func (f *Fake) Transcript(_ context.Context, id sandbox.CommandID) (io.ReadCloser, error) {
	p, err := f.process(id)
	if err != nil {
		return nil, err
	}
	c := p.snapshot()
	if !c.Spec.Record {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no transcript of this command session")
	}
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	p.mu.Lock()
	err = enc.Encode(apiv1.TranscriptEntry{Type: apiv1.TranscriptOutput, Stream: "stdout", Data: p.stdout})
	p.mu.Unlock()
	if c.State.Ended() {
		err = errors.Join(err, enc.Encode(apiv1.TranscriptEntry{Type: apiv1.TranscriptResult, State: string(c.State), ExitCode: c.ExitCode}))
	}
	return io.NopCloser(&lines), err
}

// ProxyStdin reads the whole body, as the gateway does.
func (f *Fake) ProxyStdin(w http.ResponseWriter, r *http.Request, id sandbox.CommandID) {
	p, err := f.process(id)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	if at := r.URL.Query().Get("offset"); at != "" && at != strconv.FormatUint(p.snapshot().StdinBytes, 10) {
		pr := problem.From(sandbox.Errorf(sandbox.CodeStdinOffset, "stdin has accepted another number of bytes"), problem.Options{})
		n := p.snapshot().StdinBytes
		pr.StdinBytes = &n
		pr.Write(w)
		return
	}
	if err := p.input(data, r.URL.Query().Get("eof") == "true"); err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	writeJSON(w, apiv1.WrittenStdin{StdinBytes: p.snapshot().StdinBytes})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler)
	}
}
