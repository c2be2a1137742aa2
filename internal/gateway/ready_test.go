package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

func (w *world) awaitReady(ctx context.Context, b *box, token string) error {
	_, err := w.rpc().AwaitReady(ctx, connect.NewRequest(&gatewayv1.AwaitReadyRequest{SandboxId: b.route.SandboxId,
		Generation: b.route.Generation, AgentToken: token, Hostname: "box"}))
	return err
}

// TestAwaitReadyIsQuick: what matters to a create is how soon the gateway notices that the agent listens.
func TestAwaitReadyIsQuick(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.newBox()
	done := make(chan error, 1)
	go func() { done <- w.awaitReady(t.Context(), b, b.route.AgentToken) }()
	w.eventually("the gateway asks for an agent that is still booting", func() bool { return b.tries.Load() >= 3 })
	w.boot(b)
	began := time.Now()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 500*time.Millisecond { // 50 ms between attempts, the rest for a busy machine
		t.Errorf("noticed after %v", took)
	}
	w.eventually("nothing stays open", func() bool { return b.open.Load() == 0 })
}

// TestTraceGetsToTheAgent: the agent's log says to which request its identity belongs.
func TestTraceGetsToTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	req := connect.NewRequest(&gatewayv1.AwaitReadyRequest{SandboxId: b.route.SandboxId, Generation: b.route.Generation,
		AgentToken: b.route.AgentToken, Hostname: "box"})
	trace := telemetry.NewTrace()
	telemetry.Inject(telemetry.WithTrace(t.Context(), trace), req.Header())
	if _, err := w.rpc().AwaitReady(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got := b.log.String(); !strings.Contains(got, "the machine has its identity") || !strings.Contains(got, "trace_id="+trace.ID) {
		t.Errorf("the agent has logged %q, of trace %s", got, trace.ID)
	}
}

func TestAwaitReadyGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := w.awaitReady(ctx, w.newBox(), strings.Repeat("5a", 32))
	if code := sandbox.CodeOf(err); code != sandbox.CodeGuestNotReady && code != sandbox.CodeDeadline {
		t.Errorf("no agent: %v", err)
	}
	b := w.boot(w.newBox())
	if err := w.awaitReady(t.Context(), b, strings.Repeat("00", 32)); err == nil || sandbox.CodeOf(err).Info().Retryable {
		t.Errorf("wrong token: %v", err)
	}
	wantCode(t, w.awaitReady(t.Context(), b, "short"), sandbox.CodeInvalidArgument)
}

// TestNothingBeforeConfigure: all but readiness is refused, retryably and in the right form.
func TestNothingBeforeConfigure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.boot(w.newBox())
	_, err := w.rpc().Publish(t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route}))
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = w.rpc().GetProcess(t.Context(), connect.NewRequest(&gatewayv1.GetProcessRequest{SandboxId: b.route.SandboxId,
		ProcessId: string(sandbox.NewProcessID())}))
	wantCode(t, err, sandbox.CodeUnavailable)
	if status, body, _ := w.raw("GET", "/raw/sandboxes/"+b.route.SandboxId+"/files?path=/x", nil); status != 503 {
		t.Errorf("raw: %d %s", status, body)
	}
	res := w.get("/v1/commands/" + string(sandbox.NewCommandID()) + "/output?token=x")
	res.Body.Close()
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("data plane: %d %v", res.StatusCode, res.Header)
	}
	if err := w.awaitReady(t.Context(), b, b.route.AgentToken); err != nil {
		t.Errorf("ready: %v", err)
	}
}

func TestMessagesOfControlAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.newBox()
	good := func() *gatewayv1.ConfigureRequest {
		return &gatewayv1.ConfigureRequest{VerifyKey: w.signer.PublicKey(), Routes: []*gatewayv1.Route{{SandboxId: b.route.SandboxId,
			Generation: 1, AgentToken: b.route.AgentToken}}}
	}
	for name, harm := range map[string]func(*gatewayv1.ConfigureRequest){
		"short key":   func(r *gatewayv1.ConfigureRequest) { r.VerifyKey = r.VerifyKey[:31] },
		"id":          func(r *gatewayv1.ConfigureRequest) { r.Routes[0].SandboxId = "../../x" },
		"token":       func(r *gatewayv1.ConfigureRequest) { r.Routes[0].AgentToken = "x" },
		"twice":       func(r *gatewayv1.ConfigureRequest) { r.Routes = append(r.Routes, r.Routes[0]) },
		"bad command": func(r *gatewayv1.ConfigureRequest) { r.Routes[0].Sessions = []*gatewayv1.Session{{CommandId: "x"}} },
		"bad process": func(r *gatewayv1.ConfigureRequest) {
			r.Routes[0].Sessions = []*gatewayv1.Session{{CommandId: string(sandbox.NewCommandID()), ProcessId: "x"}}
		},
	} {
		req := good()
		harm(req)
		if _, err := w.rpc().Configure(t.Context(), connect.NewRequest(req)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	_, err := w.rpc().Publish(t.Context(), connect.NewRequest(&gatewayv1.PublishRequest{Route: b.route}))
	wantCode(t, err, sandbox.CodeUnavailable) // none of the above has configured anything
}
