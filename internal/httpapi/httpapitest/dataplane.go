package httpapitest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// DropAttachments cuts every WebSocket that is open, as a gateway that is killed does.
func (f *Fake) DropAttachments() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.dropped)
	f.dropped = make(chan struct{})
}

// DataPlane returns the handler of the data plane: attach and output.
func (f *Fake) DataPlane() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/attach/{id}", f.serveAttach)
	mux.HandleFunc("GET /v1/commands/{id}/output", f.serveOutput)
	return mux
}

// admitted finds the session a request's token opens.
func (f *Fake) admitted(r *http.Request) (*process, error) {
	id := sandbox.CommandID(r.PathValue("id"))
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token != "token-"+string(id) {
		return nil, sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is missing or unknown")
	}
	return f.process(id)
}

func (f *Fake) serveAttach(w http.ResponseWriter, r *http.Request) {
	p, err := f.admitted(r)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	f.mu.Lock()
	dropped := f.dropped
	f.mu.Unlock()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{apiv1.AttachProtocol}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-dropped:
			conn.CloseNow()
		case <-ctx.Done():
		}
	}()
	p.start(f.programs)
	go f.readClient(ctx, conn, p)
	q := r.URL.Query()
	if p.stream(ctx, conn, offset(q.Get("stdout_offset")), offset(q.Get("stderr_offset"))) == nil {
		_ = conn.Close(apiv1.CloseExit, "exited")
	}
}

func offset(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func (f *Fake) readClient(ctx context.Context, conn *websocket.Conn, p *process) {
	for {
		_, msg, err := conn.Read(ctx)
		if err != nil || len(msg) == 0 {
			return
		}
		var c apiv1.Control
		switch {
		case msg[0] == apiv1.ChannelStdin:
			_ = p.input(msg[1:], false)
		case msg[0] == apiv1.ChannelControl && json.Unmarshal(msg[1:], &c) == nil:
			switch c.Type {
			case apiv1.FrameEOF:
				_ = p.input(nil, true)
			case apiv1.FrameSignal:
				_ = p.signal(c.Signal)
			}
		}
	}
}

// stream sends started, the output from the offsets, and exit.
func (p *process) stream(ctx context.Context, conn *websocket.Conn, stdout, stderr uint64) error {
	c := p.snapshot()
	if err := sendControl(ctx, conn, map[string]any{"type": apiv1.FrameStarted, "pid": c.PID, "epoch": c.Epoch,
		"stdout_offset": stdout, "stderr_offset": stderr, "stdin_offset": c.StdinBytes}); err != nil {
		return err
	}
	for {
		p.mu.Lock()
		out, errOut := p.stdout[min(stdout, uint64(len(p.stdout))):], p.stderr[min(stderr, uint64(len(p.stderr))):]
		ended, changed, c := p.cmd.State.Ended(), p.changed, p.cmd
		p.mu.Unlock()
		stdout, stderr = stdout+uint64(len(out)), stderr+uint64(len(errOut))
		if err := sendData(ctx, conn, apiv1.ChannelStdout, out); err != nil {
			return err
		}
		if err := sendData(ctx, conn, apiv1.ChannelStderr, errOut); err != nil {
			return err
		}
		if ended {
			return sendControl(ctx, conn, exitFrame(c))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func exitFrame(c sandbox.Command) map[string]any {
	m := map[string]any{"type": apiv1.FrameExit, "state": string(c.State), "exit_code": c.ExitCode, "signal": nil, "error": nil}
	if c.Signal != "" {
		m["signal"] = c.Signal
	}
	if c.ErrorCode != "" {
		m["error"] = apiv1.CommandError{Code: c.ErrorCode, Message: c.ErrorMessage}
	}
	return m
}

func sendControl(ctx context.Context, conn *websocket.Conn, frame any) error {
	body, err := json.Marshal(frame)
	if err != nil {
		return fmt.Errorf("control frame: %w", err)
	}
	return conn.Write(ctx, websocket.MessageBinary, append([]byte{apiv1.ChannelControl}, body...))
}

// maxChunk makes frames of 32 KiB with their channel, as the gateway does.
const maxChunk = 32<<10 - 1

func sendData(ctx context.Context, conn *websocket.Conn, channel byte, body []byte) error {
	for chunk := range slices.Chunk(body, maxChunk) {
		if err := conn.Write(ctx, websocket.MessageBinary, append([]byte{channel}, chunk...)); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) serveOutput(w http.ResponseWriter, r *http.Request) {
	p, err := f.admitted(r)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	q := r.URL.Query()
	follow := q.Get("follow") == "true"
	if follow {
		p.start(f.programs)
	}
	at := offset(q.Get("offset"))
	rc := http.NewResponseController(w)
	for {
		p.mu.Lock()
		all := p.stdout
		if q.Get("stream") == "stderr" {
			all = p.stderr
		}
		part := all[min(at, uint64(len(all))):]
		ended, changed := p.cmd.State.Ended(), p.changed
		p.mu.Unlock()
		at += uint64(len(part))
		if _, err := w.Write(part); err != nil {
			return
		}
		if ended || !follow {
			return
		}
		_ = rc.Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
