// Package ingress is the data plane: it carries the output and input of command sessions between clients and guests,
// as a WebSocket (GET /v1/attach/{command}) and as a plain body (GET /v1/commands/{command}/output).
//
// Both sides are outside: clients are unknown until their token is verified, and what a guest answers is only bytes to
// pass on, in bounded pieces. There is no other way through: a request never chooses a port or a path in the guest.
package ingress

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Backend is what the data plane needs to know. Errors are *sandbox.Error.
type Backend interface {
	// VerifyAttach returns the claims of a valid token. Until the verification key is known it is CodeUnavailable.
	VerifyAttach(token string) (auth.AttachClaims, error)
	// Session returns the session that verified claims open, if it is reachable now.
	Session(claims auth.AttachClaims) (Session, error)
}

// Session is one command session of a reachable sandbox.
type Session struct {
	SandboxID sandbox.ID
	CommandID sandbox.CommandID
	ProcessID sandbox.ProcessID
	Epoch     int64
	Guest     Guest
	// Life ends when the sandbox stops being reachable by this route. Its cause is a *LostError, a *PausedError or
	// ErrRestart.
	Life context.Context
}

// Guest is the agent of one sandbox, as far as the data plane needs it. Errors are *sandbox.Error: CodeUnavailable and
// CodeGuestNotReady when it cannot be reached, CodeGuestFault when it answers nonsense.
type Guest interface {
	GetProcess(ctx context.Context, id sandbox.ProcessID) (*agentv1.Process, error)
	Attach(ctx context.Context, req *agentv1.AttachRequest) (Stream, error)
	WriteStdin(ctx context.Context, req *agentv1.WriteStdinRequest) (stdinBytes uint64, err error)
	SignalProcess(ctx context.Context, id sandbox.ProcessID, signal string) error
	ResizeProcess(ctx context.Context, id sandbox.ProcessID, size *agentv1.TerminalSize) error
}

// Stream is an attach stream. Receive returns io.EOF at its end; nothing is received after an error. Close may be
// called at any time.
type Stream interface {
	Receive() (*agentv1.AttachResponse, error)
	Close()
}

// ErrRestart is the cause of a Session's end when only the gateway goes away: clients attach again from their offsets.
var ErrRestart = errors.New("the gateway is restarting")

// LostError is the cause of a Session's end when the sandbox is gone.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return e.Reason }

// PausedError is the cause of a Session's end when the sandbox stands still: clients attach again from their offsets
// when it goes on.
type PausedError struct {
	SandboxID sandbox.ID
	Reason    string // "paused" or "pool_full"
}

func (e *PausedError) Error() string { return e.Reason }

// Refusal is the answer to whoever asks something of the sandbox meanwhile.
func (e *PausedError) Refusal() *sandbox.Error {
	if e.Reason == sandbox.ReasonPoolFull {
		return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox is paused", Cause: "pool_full: the host's disk pool is full",
			Remedy: "it goes on by itself when there is room: delete what is not needed"}
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "the sandbox is paused", Cause: e.Reason,
		Remedy: "resume it: space resume " + string(e.SandboxID)}
}

// Limits bounds what clients may take. The zero value of a field means its default.
type Limits struct {
	PerSandbox   int           // open attachments of one sandbox; 64
	Total        int           // open attachments in all; 1024
	PingInterval time.Duration // between pings to WebSocket clients; 30 s
	// IdleTimeout ends a connection on which nothing moves in either direction, not even a pong; 5 min.
	IdleTimeout time.Duration
	// GuestPatience is how long an agent that cannot be reached is tried again during a stream; 30 s.
	GuestPatience time.Duration
	// Linger is how long a client that is behind may take to read what is left after the end of a stream; 30 s.
	Linger time.Duration
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.PerSandbox, 64)
	setDefault(&l.Total, 1024)
	setDefault(&l.PingInterval, 30*time.Second)
	setDefault(&l.IdleTimeout, 5*time.Minute)
	setDefault(&l.GuestPatience, 30*time.Second)
	setDefault(&l.Linger, 30*time.Second)
	return l
}

func setDefault[T ~int | ~int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Config is what a Handler is made of. Backend and Logger are required.
type Config struct {
	Backend Backend
	Logger  *slog.Logger
	Limits  Limits
}

// Handler serves the data plane. Safe for concurrent use. Streams end when their Session's Life does or their client
// goes.
type Handler struct {
	backend Backend
	logger  *slog.Logger
	limits  Limits
	slots   *slots
	crowd   *crowd
}

// New makes a Handler.
func New(cfg Config) *Handler {
	limits := cfg.Limits.withDefaults()
	return &Handler{backend: cfg.Backend, logger: cfg.Logger, limits: limits, slots: newSlots(limits.PerSandbox, limits.Total),
		crowd: newCrowd()}
}

// Wait returns when no attachment is open. End the lives of all sessions first.
func (h *Handler) Wait() { h.slots.wait() }

// ServeHTTP answers one request. A fault of ours is an answer too, or, when one has begun, a connection cut visibly.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tw := &trackedWriter{ResponseWriter: w}
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		if err, ok := fault.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			h.logger.Error("panic in the data plane", "path", r.URL.Path, "fault", fault, "stack", string(debug.Stack()))
		}
		if tw.begun {
			panic(http.ErrAbortHandler)
		}
		problem.Write(w, errors.New("panic"), problem.Options{})
	}()
	h.dispatch(tw, r)
}

// trackedWriter knows whether an answer has begun.
type trackedWriter struct {
	http.ResponseWriter
	begun bool
}

// Unwrap is for http.ResponseController.
func (w *trackedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *trackedWriter) WriteHeader(status int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

// dispatch routes by the exact path; nothing is cleaned or redirected. Only the path is ever logged: the query may
// hold a token.
func (h *Handler) dispatch(w http.ResponseWriter, r *http.Request) {
	// An earlier request on this connection may have left its deadline; writers without deadlines have none to clear.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	serve, command, ok := h.route(r.URL.Path)
	if !ok {
		problem.Write(w, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such route",
			Remedy: "the data plane serves /v1/attach/{command} and /v1/commands/{command}/output"}, problem.Options{})
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		problem.Write(w, &sandbox.Error{Code: sandbox.CodeMethodNotAllowed, Message: "this route only knows GET"}, problem.Options{})
		return
	}
	if err := serve(w, r, command); err != nil {
		e := sandbox.AsError(err)
		h.logger.Debug("data plane request refused", "path", r.URL.Path, "code", e.Code, "error", e.Error())
		problem.Write(w, err, problem.Options{})
	}
}

// serveFunc answers a request; an error means that nothing has been written yet.
type serveFunc func(w http.ResponseWriter, r *http.Request, command string) error

func (h *Handler) route(path string) (serveFunc, string, bool) {
	if command, ok := strings.CutPrefix(path, "/v1/attach/"); ok && !strings.Contains(command, "/") {
		return h.serveAttach, command, true
	}
	if rest, ok := strings.CutPrefix(path, "/v1/commands/"); ok {
		if command, ok := strings.CutSuffix(rest, "/output"); ok && !strings.Contains(command, "/") {
			return h.serveOutput, command, true
		}
	}
	return nil, "", false
}

// authorize finds the session that the request's token opens and the path names.
func (h *Handler) authorize(r *http.Request, command string, p params) (Session, error) {
	token, err := requestToken(r, p)
	if err != nil {
		return Session{}, err
	}
	claims, err := h.backend.VerifyAttach(token)
	if err != nil {
		return Session{}, err
	}
	id, err := sandbox.ParseCommandID(command)
	if err != nil {
		return Session{}, err
	}
	if id != claims.CommandID {
		return Session{}, &sandbox.Error{Code: sandbox.CodeForbidden, Message: "the token opens another command session",
			Remedy: "ask for a token of this one: POST /v1/commands/{id}/attach"}
	}
	return h.backend.Session(claims)
}
