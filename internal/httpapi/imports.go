package httpapi

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

// resourceTemplate is the type of an operation's resource.
const resourceTemplate = "template"

// mediaTar is the type of an archive as a body.
const mediaTar = "application/x-tar"

// addImport registers the import of images, whose body is a JSON object or an archive.
func (s *server) addImport() {
	registry := s.api.OpenAPI().Components.Schemas
	answer := map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(reflect.TypeOf(apiv1.TemplateLifecycle{}), true, "")}}
	responses := withResponse(http.StatusAccepted, "The operation was accepted; an archive has been received", answer)
	responses["200"] = &huma.Response{Description: "The operation has succeeded (with a wait)", Content: answer}
	text := &huma.Schema{Type: huma.TypeString}
	op := huma.Operation{
		OperationID: "import-template", Method: http.MethodPost, Path: "/v1/templates", Tags: []string{tagTemplates},
		Summary: "Make a template of an image", Responses: responses, Metadata: map[string]any{metaRawBody: true},
		Description: "A JSON object names an image in a registry. An archive of type application/x-tar (an OCI layout, or what docker save and skopeo write, not compressed) is the image itself; its name is the parameter name.",
		Parameters: []*huma.Param{queryParam("name", "[namespace/]name[:tag], with an archive", false, text),
			queryParam("wait", "Wait so long for the end: seconds (30, 2.5) or with a unit (30s); at most 300", false, text),
			{Name: "Prefer", In: "header", Description: "wait=30 is another way to say ?wait=30", Schema: text},
			{Name: "Idempotency-Key", In: "header", Description: "Names this request for 24 hours", Schema: text}},
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(reflect.TypeOf(apiv1.ImportTemplate{}), true, "")},
			mediaTar:           {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}},
	}
	s.raw(op, func(w http.ResponseWriter, r *http.Request) {
		if err := s.importTemplate(&op, w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// importTemplate answers an import like every lifecycle call; an error has not been answered yet.
func (s *server) importTemplate(op *huma.Operation, w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	wait, asked, err := WaitParams{Wait: r.URL.Query().Get("wait"), Prefer: r.Header.Get("Prefer")}.duration()
	if err != nil {
		return err
	}
	spec, err := s.importSpec(op, r)
	if err != nil {
		return err
	}
	param := IdempotencyParam{Key: r.Header.Get("Idempotency-Key")}
	call, err := param.call(ctx, "POST /v1/templates", []string{spec.Name, spec.Image})
	if err != nil {
		return err
	}
	acc, err := s.Control.ImportTemplate(ctx, call, spec)
	if err != nil {
		return err
	}
	if asked && !acc.Operation.State.Ended() {
		if acc.Operation, err = s.Control.GetOperation(ctx, acc.Operation.ID, wait); err != nil {
			return err
		}
	}
	if asked && (acc.Operation.State == operation.Failed || acc.Operation.State == operation.Canceled) {
		err := operationError(acc.Operation)
		s.report(ctx, "import", err)
		problem.Write(w, err, wire.ProblemOptions(acc.Operation))
		return nil
	}
	return s.writeImport(ctx, w, acc, asked)
}

// importSpec takes the name from the query for an archive, from the body otherwise.
func (s *server) importSpec(op *huma.Operation, r *http.Request) (control.ImportSpec, error) {
	name := r.URL.Query().Get("name")
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && media == mediaTar {
		if name == "" {
			return control.ImportSpec{}, invalid(sandbox.FieldError{Field: "name", Message: "is required with an archive"})
		}
		return control.ImportSpec{Name: name, Archive: r.Body}, nil
	}
	if name != "" {
		return control.ImportSpec{}, invalid(sandbox.FieldError{Field: "name", Message: "goes with an archive of type " + mediaTar + "; here it belongs into the body"})
	}
	data, err := s.readJSON(op, r)
	if err != nil {
		return control.ImportSpec{}, err
	}
	var in apiv1.ImportTemplate
	if err := json.Unmarshal(data, &in); err != nil {
		return control.ImportSpec{}, invalid(sandbox.FieldError{Field: "body", Message: err.Error()})
	}
	if in.Image == "" {
		return control.ImportSpec{}, invalid(sandbox.FieldError{Field: "image", Message: "is required"})
	}
	return control.ImportSpec{Name: in.Name, Image: in.Image}, nil
}

func (s *server) writeImport(ctx context.Context, w http.ResponseWriter, acc control.Accepted, asked bool) error {
	m, err := s.madeBy(ctx, acc.Operation)
	if err != nil {
		return err
	}
	out := apiv1.TemplateLifecycle{Operation: s.operationWire(acc.Operation, m)}
	status := http.StatusAccepted
	if acc.Operation.State == operation.Succeeded {
		if out.Operation.Result != nil {
			out.Template = out.Operation.Result.Template
		}
		if asked {
			status = http.StatusOK
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Location", "/v1/operations/"+string(acc.Operation.ID))
	if acc.Replayed {
		h.Set("Idempotency-Replayed", "true")
	}
	w.WriteHeader(status)
	_, _ = w.Write(data)
	return nil
}
