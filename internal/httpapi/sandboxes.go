package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	tagSandboxes    = "Sandboxes"
	resourceSandbox = "sandbox"
	metadataPrefix  = "metadata."
	listSandboxesID = "list-sandboxes"
)

func (s *server) addSandboxes() {
	huma.Register(s.api, huma.Operation{
		OperationID: "create-sandbox", Method: http.MethodPost, Path: "/v1/sandboxes", Tags: []string{tagSandboxes},
		Summary: "Create a sandbox", DefaultStatus: http.StatusAccepted, Responses: lifecycleResponses(),
		Description: "Answers 202 at once. With a wait it answers 200 when the sandbox is ready, the error when that failed, 202 when the wait ran out.",
	}, s.createSandbox)
	huma.Register(s.api, huma.Operation{
		OperationID: listSandboxesID, Method: http.MethodGet, Path: "/v1/sandboxes", Tags: []string{tagSandboxes},
		Summary: "List sandboxes", Responses: errorResponses(), Metadata: map[string]any{metaQueryPrefix: metadataPrefix, metaToken: anyScope},
		Description: "Besides the parameters below, metadata.KEY=VALUE selects by a label. Deleted sandboxes are listed only when state names them. With a sandbox token, the list has this sandbox at most.",
	}, s.listSandboxes)
	huma.Register(s.api, huma.Operation{
		OperationID: "get-sandbox", Method: http.MethodGet, Path: "/v1/sandboxes/{id}", Tags: []string{tagSandboxes},
		Summary: "Get a sandbox", Responses: errorResponses(), Metadata: forTokens(anyScope),
	}, s.getSandbox)
	huma.Register(s.api, huma.Operation{
		OperationID: "patch-sandbox", Method: http.MethodPatch, Path: "/v1/sandboxes/{id}", Tags: []string{tagSandboxes},
		Summary: "Change a sandbox's name, metadata or lease", Responses: errorResponses(),
	}, s.patchSandbox)
	huma.Register(s.api, huma.Operation{
		OperationID: "delete-sandbox", Method: http.MethodDelete, Path: "/v1/sandboxes/{id}", Tags: []string{tagSandboxes},
		Summary: "Delete a sandbox", DefaultStatus: http.StatusAccepted, Responses: lifecycleResponses(),
		Description: "Legal in every state. While it is being deleted the same operation is answered.",
	}, s.verb(http.MethodDelete, "", Control.DeleteSandbox))
	for _, v := range []struct {
		verb              sandbox.Verb
		summary, describe string
		do                verbFunc
	}{
		{sandbox.VerbPause, "Pause a sandbox", "Its vCPUs stop, its memory stays; its commands stand still and go on with resume. Attached streams end with close code 4002.", Control.PauseSandbox},
		{sandbox.VerbResume, "Resume a paused sandbox", "It goes on where it stood, with its clock set.", Control.ResumeSandbox},
		{sandbox.VerbRecover, "Recover a failed sandbox", "A new machine boots on the disk that the old one has left. What was in its memory, commands too, is lost.", Control.RecoverSandbox},
	} {
		huma.Register(s.api, huma.Operation{
			OperationID: string(v.verb) + "-sandbox", Method: http.MethodPost, Path: "/v1/sandboxes/{id}/" + string(v.verb), Tags: []string{tagSandboxes},
			Summary: v.summary, DefaultStatus: http.StatusAccepted, Responses: lifecycleResponses(),
			Description: v.describe + " docs/lifecycle.md says in which states it is legal; 200 with no_change when it is so already.",
		}, s.verb(http.MethodPost, "/"+string(v.verb), v.do))
	}
}

// SandboxPath names a sandbox in a path.
type SandboxPath struct {
	ID string `path:"id" maxLength:"64" doc:"Id or name of the sandbox"`
}

type sandboxOutput struct{ Body apiv1.Sandbox }

type createSandboxInput struct {
	WaitParams
	IdempotencyParam
	Body apiv1.CreateSandbox
}

func (s *server) createSandbox(ctx context.Context, in *createSandboxInput) (*lifecycleOutput, error) {
	const scope = "POST /v1/sandboxes"
	return s.lifecycle(ctx, scope, in.WaitParams, func() (control.Accepted, error) {
		spec, err := sandboxSpec(in.Body)
		if err != nil {
			return control.Accepted{}, err
		}
		call, err := in.call(ctx, scope, in.Body)
		if err != nil {
			return control.Accepted{}, err
		}
		return s.Control.CreateSandbox(ctx, call, spec)
	})
}

// verbInput is what every verb on a sandbox takes.
type verbInput struct {
	SandboxPath
	WaitParams
	IdempotencyParam
	IfBusy  string `query:"if_busy" enum:"fail" doc:"fail: answer sandbox_busy instead of queueing behind a transition"`
	IfState string `query:"if_state" enum:"creating,running,pausing,paused,resuming,failed,deleting" doc:"Do it only when the sandbox is in this state when the call runs"`
}

// verbFunc is a method of Control.
type verbFunc func(c Control, ctx context.Context, call control.Call, ref string) (control.Accepted, error)

// verb makes the handler of a lifecycle call on one sandbox.
func (s *server) verb(method, suffix string, do verbFunc) func(context.Context, *verbInput) (*lifecycleOutput, error) {
	return func(ctx context.Context, in *verbInput) (*lifecycleOutput, error) {
		scope := method + " /v1/sandboxes/" + in.ID + suffix
		return s.lifecycle(ctx, scope, in.WaitParams, func() (control.Accepted, error) {
			ref, err := sandboxRef(in.ID)
			if err != nil {
				return control.Accepted{}, err
			}
			call, err := in.call(ctx, scope, nil)
			if err != nil {
				return control.Accepted{}, err
			}
			call.IfBusyFail = in.IfBusy == "fail"
			call.IfState = sandbox.State(in.IfState)
			return do(s.Control, ctx, call, ref)
		})
	}
}

func (s *server) getSandbox(ctx context.Context, in *SandboxPath) (*sandboxOutput, error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return nil, s.refused(ctx, "get sandbox", err)
	}
	b, err := s.Control.GetSandbox(ctx, ref)
	if err != nil {
		return nil, s.refused(ctx, "get sandbox", err)
	}
	return &sandboxOutput{Body: s.sandboxWire(b)}, nil
}

type patchSandboxInput struct {
	SandboxPath
	Body    apiv1.PatchSandbox
	RawBody []byte
}

func (s *server) patchSandbox(ctx context.Context, in *patchSandboxInput) (*sandboxOutput, error) {
	b, err := s.patch(ctx, in)
	if err != nil {
		return nil, s.refused(ctx, "patch sandbox", err)
	}
	return &sandboxOutput{Body: s.sandboxWire(b)}, nil
}

func (s *server) patch(ctx context.Context, in *patchSandboxInput) (sandbox.Sandbox, error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	// A pointer does not tell null from absent, the raw object does.
	var given map[string]json.RawMessage
	if err := json.Unmarshal(in.RawBody, &given); err != nil {
		return sandbox.Sandbox{}, malformed(err.Error())
	}
	patch := control.SandboxPatch{Name: in.Body.Name}
	if _, ok := given["name"]; ok && patch.Name == nil {
		patch.Name = new(string)
	}
	if patch.Name != nil && *patch.Name != "" {
		if _, err := sandbox.ParseName(*patch.Name); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if _, ok := given["metadata"]; ok {
		patch.Metadata = map[string]string{}
		if in.Body.Metadata != nil && *in.Body.Metadata != nil {
			patch.Metadata = *in.Body.Metadata
		}
	}
	if _, ok := given["lease"]; ok {
		patch.Lease = leasePatch(in.Body.Lease)
	}
	if wrong := checkMetadata(patch.Metadata); len(wrong) > 0 {
		return sandbox.Sandbox{}, invalid(wrong...)
	}
	return s.Control.PatchSandbox(ctx, ref, patch)
}

type listSandboxesInput struct {
	PageParams
	State        string    `query:"state" doc:"One or more states, separated by commas" example:"running,failed"`
	CreatedAfter time.Time `query:"created_after" doc:"Only those made after this time"`
	Template     string    `query:"template" maxLength:"256" doc:"Only those made from this template: its reference or digest as the sandbox shows it"`
	metadata     map[string]string
}

// Resolve collects metadata.KEY=VALUE, which huma cannot express.
func (in *listSandboxesInput) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	for name, values := range u.Query() {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			if in.metadata == nil {
				in.metadata = map[string]string{}
			}
			in.metadata[key] = values[0]
		}
	}
	return nil
}

type sandboxListOutput struct{ Body apiv1.List[apiv1.Sandbox] }

func (s *server) listSandboxes(ctx context.Context, in *listSandboxesInput) (*sandboxListOutput, error) {
	states, err := oneOf("state", in.State, sandbox.States()...)
	if err != nil {
		return nil, s.refused(ctx, "list sandboxes", err)
	}
	page, err := s.Control.ListSandboxes(ctx, control.SandboxFilter{PageRequest: in.request(), ID: visibleTo(principalOf(ctx)), States: states,
		CreatedAfter: in.CreatedAfter, Template: in.Template, Metadata: in.metadata})
	if err != nil {
		return nil, s.refused(ctx, "list sandboxes", err)
	}
	return &sandboxListOutput{Body: listWire(page, s.sandboxWire)}, nil
}

func listWire[From, To any](page control.Page[From], wire func(From) To) apiv1.List[To] {
	out := apiv1.List[To]{Items: make([]To, 0, len(page.Items)), NextCursor: page.NextCursor, Total: page.Total}
	for _, item := range page.Items {
		out.Items = append(out.Items, wire(item))
	}
	return out
}

// isNotFound reports whether err says that the thing does not exist.
func isNotFound(err error) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Code == sandbox.CodeNotFound
}
