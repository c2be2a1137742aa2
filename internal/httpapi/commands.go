package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

const tagCommands = "Commands"

func (s *server) addCommands() {
	huma.Register(s.api, huma.Operation{
		OperationID: "create-command", Method: http.MethodPost, Path: "/v1/sandboxes/{id}/commands", Tags: []string{tagCommands},
		Summary: "Create a command session", DefaultStatus: http.StatusCreated, Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
		Description: "The process runs from the first attach, or at once with start. An argv, cwd or user that the guest does not have is no error of this call: the session's state becomes failed.",
	}, s.createCommand)
	huma.Register(s.api, huma.Operation{
		OperationID: "list-commands", Method: http.MethodGet, Path: "/v1/sandboxes/{id}/commands", Tags: []string{tagCommands},
		Summary: "List a sandbox's command sessions", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
	}, s.listCommands)
	huma.Register(s.api, huma.Operation{
		OperationID: "exec", Method: http.MethodPost, Path: "/v1/sandboxes/{id}/exec", Tags: []string{tagCommands},
		Summary: "Run a command to its end", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
		Description: "Creates a session, starts it and waits for it. Answers 200 whenever the session exists, whatever became of it. When the client goes away the command goes on.",
	}, s.exec)
	huma.Register(s.api, huma.Operation{
		OperationID: "get-command", Method: http.MethodGet, Path: "/v1/commands/{id}", Tags: []string{tagCommands},
		Summary: "Get a command session, or wait for its end", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
	}, s.getCommand)
	huma.Register(s.api, huma.Operation{
		OperationID: "attach-command", Method: http.MethodPost, Path: "/v1/commands/{id}/attach", Tags: []string{tagCommands},
		Summary: "Get a token for the data plane", DefaultStatus: http.StatusCreated, Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
	}, s.attachCommand)
	huma.Register(s.api, huma.Operation{
		OperationID: "signal-command", Method: http.MethodPost, Path: "/v1/commands/{id}/signal", Tags: []string{tagCommands},
		Summary: "Signal a command's process group", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
	}, s.signalCommand)
	huma.Register(s.api, huma.Operation{
		OperationID: "resize-command", Method: http.MethodPost, Path: "/v1/commands/{id}/resize", Tags: []string{tagCommands},
		Summary: "Change the size of a command's terminal", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
	}, s.resizeCommand)
	huma.Register(s.api, huma.Operation{
		OperationID: "kill-command", Method: http.MethodDelete, Path: "/v1/commands/{id}", Tags: []string{tagCommands},
		Summary: "Kill a command's process group", Responses: errorResponses(), Metadata: forTokens(auth.ScopeCommands),
		Description: "One that was not started fails as canceled. One that has ended stays as it is.",
	}, s.killCommand)
}

type createCommandInput struct {
	SandboxPath
	IdempotencyParam
	Body apiv1.CreateCommand
}

type createCommandOutput struct {
	ReplayHeader
	Body apiv1.CreatedCommand
}

func (s *server) createCommand(ctx context.Context, in *createCommandInput) (*createCommandOutput, error) {
	b := in.Body
	made, err := s.newCommand(ctx, in, sandbox.CommandSpec{Argv: b.Argv, Env: b.Env, Cwd: b.Cwd, User: b.User,
		Stdin: b.Stdin, PTY: terminalSize(b.PTY), TimeoutSeconds: b.TimeoutSeconds, Tag: b.Tag, Record: b.Record})
	if err != nil {
		return nil, s.refused(ctx, "create command", err)
	}
	return &createCommandOutput{ReplayHeader: replayed(made.Replayed),
		Body: apiv1.CreatedCommand{Command: wire.Command(made.Command), Attach: attachWire(made.Attach)}}, nil
}

func (s *server) newCommand(ctx context.Context, in *createCommandInput, spec sandbox.CommandSpec) (control.CreatedCommand, error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return control.CreatedCommand{}, err
	}
	if spec, err = commandSpec(spec); err != nil {
		return control.CreatedCommand{}, err
	}
	call, err := in.call(ctx, "POST /v1/sandboxes/"+ref+"/commands", in.Body)
	if err != nil {
		return control.CreatedCommand{}, err
	}
	return s.Control.CreateCommand(ctx, call, ref, spec, in.Body.Start)
}

type listCommandsInput struct {
	SandboxPath
	PageParams
	Tag   string `query:"tag" maxLength:"256" doc:"Only those with this tag"`
	PID   int    `query:"pid" minimum:"1" doc:"Only the one whose process has this pid in the guest"`
	State string `query:"state" doc:"One or more states, separated by commas" example:"created,running"`

	CreatedAfter time.Time `query:"created_after" doc:"Only those made after this time"`
}

type commandListOutput struct{ Body apiv1.List[apiv1.Command] }

func (s *server) listCommands(ctx context.Context, in *listCommandsInput) (*commandListOutput, error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return nil, s.refused(ctx, "list commands", err)
	}
	states, err := oneOf("state", in.State, sandbox.CommandCreated, sandbox.CommandRunning, sandbox.CommandExited,
		sandbox.CommandFailed, sandbox.CommandExpired, sandbox.CommandLost)
	if err != nil {
		return nil, s.refused(ctx, "list commands", err)
	}
	page, err := s.Control.ListCommands(ctx, ref, control.CommandFilter{PageRequest: in.request(), Tag: in.Tag, PID: in.PID, States: states,
		CreatedAfter: in.CreatedAfter})
	if err != nil {
		return nil, s.refused(ctx, "list commands", err)
	}
	return &commandListOutput{Body: listWire(page, wire.Command)}, nil
}

// CommandPath names a command session in a path.
type CommandPath struct {
	ID string `path:"id" maxLength:"64" example:"cmd_k3v0q7c2m9x4b8n1z5w6"`
}

type commandOutput struct{ Body apiv1.Command }

type getCommandInput struct {
	CommandPath
	WaitParams
}

func (s *server) getCommand(ctx context.Context, in *getCommandInput) (*commandOutput, error) {
	return s.oneCommand(ctx, "get command", in.ID, func(id sandbox.CommandID) (sandbox.Command, error) {
		wait, _, err := in.duration()
		if err != nil {
			return sandbox.Command{}, err
		}
		return s.Control.GetCommand(ctx, id, wait)
	})
}

type changedCommandOutput struct {
	ReplayHeader
	Body apiv1.Command
}

type signalInput struct {
	CommandPath
	IdempotencyParam
	Body apiv1.Signal
}

func (s *server) signalCommand(ctx context.Context, in *signalInput) (*changedCommandOutput, error) {
	name, err := signalName(in.Body.Signal)
	if err != nil {
		return nil, s.refused(ctx, "signal command", err)
	}
	return s.changeCommand(ctx, "POST /v1/commands/"+in.ID+"/signal", in.ID, in.IdempotencyParam, in.Body,
		func(id sandbox.CommandID) (sandbox.Command, error) { return s.Control.SignalCommand(ctx, id, name) })
}

type resizeInput struct {
	CommandPath
	IdempotencyParam
	Body apiv1.PTY
}

func (s *server) resizeCommand(ctx context.Context, in *resizeInput) (*changedCommandOutput, error) {
	return s.changeCommand(ctx, "POST /v1/commands/"+in.ID+"/resize", in.ID, in.IdempotencyParam, in.Body,
		func(id sandbox.CommandID) (sandbox.Command, error) {
			return s.Control.ResizeCommand(ctx, id, *terminalSize(&in.Body))
		})
}

// terminalSize reads a size whose bounds the schema has checked.
func terminalSize(p *apiv1.PTY) *sandbox.TerminalSize {
	if p == nil {
		return nil
	}
	return &sandbox.TerminalSize{Cols: uint16(p.Cols), Rows: uint16(p.Rows)}
}

type killInput struct {
	CommandPath
	IdempotencyParam
}

func (s *server) killCommand(ctx context.Context, in *killInput) (*changedCommandOutput, error) {
	return s.changeCommand(ctx, "DELETE /v1/commands/"+in.ID, in.ID, in.IdempotencyParam, nil,
		func(id sandbox.CommandID) (sandbox.Command, error) { return s.Control.KillCommand(ctx, id) })
}

// changeCommand does something to a session once for each Idempotency-Key; a replay answers its present record.
func (s *server) changeCommand(ctx context.Context, scope, id string, key IdempotencyParam, body any,
	do func(sandbox.CommandID) (sandbox.Command, error)) (*changedCommandOutput, error) {
	again := false
	out, err := s.oneCommand(ctx, scope, id, func(id sandbox.CommandID) (c sandbox.Command, err error) {
		call, err := key.call(ctx, scope, body)
		if err != nil {
			return c, err
		}
		again, err = s.Control.Once(ctx, call, string(id), func() error { c, err = do(id); return err })
		if again {
			return s.Control.GetCommand(ctx, id, 0)
		}
		return c, err
	})
	if err != nil {
		return nil, err
	}
	return &changedCommandOutput{ReplayHeader: replayed(again), Body: out.Body}, nil
}

func (s *server) oneCommand(ctx context.Context, what, id string, do func(sandbox.CommandID) (sandbox.Command, error)) (*commandOutput, error) {
	parsed, err := sandbox.ParseCommandID(id)
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	c, err := do(parsed)
	if err != nil {
		return nil, s.refused(ctx, what, err)
	}
	return &commandOutput{Body: wire.Command(c)}, nil
}

type attachInput struct {
	CommandPath
	IdempotencyParam
}

type attachOutput struct {
	ReplayHeader
	Body apiv1.Attached
}

// attachCommand answers a replay with another token for the same session: tokens are not kept.
func (s *server) attachCommand(ctx context.Context, in *attachInput) (*attachOutput, error) {
	id, err := sandbox.ParseCommandID(in.ID)
	if err != nil {
		return nil, s.refused(ctx, "attach command", err)
	}
	call, err := in.call(ctx, "POST /v1/commands/"+in.ID+"/attach", nil)
	if err != nil {
		return nil, s.refused(ctx, "attach command", err)
	}
	var a control.Attach
	attach := func() (err error) { a, err = s.Control.AttachCommand(ctx, call.Principal, id); return err }
	again, err := s.Control.Once(ctx, call, string(id), attach)
	if again {
		err = attach()
	}
	if err != nil {
		return nil, s.refused(ctx, "attach command", err)
	}
	return &attachOutput{ReplayHeader: replayed(again), Body: apiv1.Attached{Attach: attachWire(a)}}, nil
}
