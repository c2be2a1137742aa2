package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// addChanges registers what changes names. The bodies of mkdir and move are read and become a query.
func (s *server) addChanges() {
	remove := huma.Operation{
		OperationID: "delete-file", Method: http.MethodDelete, Path: "/v1/sandboxes/{id}/files", Tags: []string{tagFiles},
		Summary: "Remove a file or directory", Metadata: forTokens(auth.ScopeFiles),
		Description: "A link is removed, not what it leads to. A directory that is not empty needs recursive.",
		Parameters: []*huma.Param{sandboxParam(), pathParam(), userParam(), idempotencyParam(),
			flagParam("recursive", "Remove what is in a directory too"), flagParam("missing_ok", "What does not exist is no error")},
		Responses: withResponse(http.StatusNoContent, "It is gone", nil),
	}
	s.raw(remove, func(w http.ResponseWriter, r *http.Request) { s.changeFiles(w, r, "") })
	for _, c := range []struct {
		action, id, summary, doc string
		body                     any
		query                    func(raw []byte) (url.Values, error)
	}{
		{"mkdir", "make-directory", "Make a directory", "", apiv1.MakeDirectory{}, mkdirQuery},
		{"move", "move-file", "Rename a file or directory", "Within one file system. Links are moved themselves.", apiv1.MoveFile{}, moveQuery},
	} {
		schema := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(c.body), true, "")
		op := huma.Operation{
			OperationID: c.id, Method: http.MethodPost, Path: "/v1/sandboxes/{id}/files/" + c.action, Tags: []string{tagFiles},
			Summary: c.summary, Description: c.doc, Metadata: forTokens(auth.ScopeFiles), Parameters: []*huma.Param{sandboxParam(), userParam(), idempotencyParam()},
			RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}},
			Responses:   withResponse(http.StatusOK, "What is there now", answer("FileInfo")),
		}
		s.raw(op, func(w http.ResponseWriter, r *http.Request) {
			body, err := s.readJSON(&op, r)
			var q url.Values
			if err == nil {
				err = s.validateBody(schema, body)
			}
			if err == nil {
				q, err = c.query(body)
			}
			if err != nil {
				s.fail(w, r, err)
				return
			}
			if user := r.URL.Query().Get("user"); user != "" {
				q.Set("user", user)
			}
			r = r.Clone(r.Context())
			r.URL.RawQuery, r.Body, r.ContentLength = q.Encode(), http.NoBody, 0
			s.changeFiles(w, r, c.action)
		})
	}
}

func mkdirQuery(raw []byte) (url.Values, error) {
	var in apiv1.MakeDirectory
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, malformed(err.Error())
	}
	q := url.Values{"path": {in.Path}}
	if in.Mode != "" {
		q.Set("mode", in.Mode)
	}
	if in.CreateParents {
		q.Set("create_parents", "true")
	}
	return q, nil
}

func moveQuery(raw []byte) (url.Values, error) {
	var in apiv1.MoveFile
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, malformed(err.Error())
	}
	q := url.Values{"path": {in.From}, "to": {in.To}}
	if in.Overwrite {
		q.Set("overwrite", "true")
	}
	return q, nil
}

// validateBody checks types and bounds of a body that has passed readJSON, as huma does for typed operations.
func (s *server) validateBody(schema *huma.Schema, raw []byte) error {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return malformed(err.Error())
	}
	found := &huma.ValidateResult{}
	at := huma.NewPathBuffer(nil, 0)
	huma.Validate(s.api.OpenAPI().Components.Schemas, schema, at, huma.ModeWriteToServer, v, found)
	var wrong []sandbox.FieldError
	for _, err := range found.Errors {
		field, message := "body", err.Error()
		if d, ok := errors.AsType[*huma.ErrorDetail](err); ok {
			field, message = d.Location, d.Message
		}
		wrong = append(wrong, sandbox.FieldError{Field: field, Message: message})
	}
	if len(wrong) > 0 {
		return invalid(wrong...)
	}
	return nil
}

// errAnswered is a change that was refused, with the answer written already.
var errAnswered = errors.New("answered")

// changeFiles passes a change on, once for each Idempotency-Key. A replay answers what is there now.
func (s *server) changeFiles(w http.ResponseWriter, r *http.Request, action string) {
	ref, err := sandboxRef(r.PathValue("id"))
	q := r.URL.Query()
	if err == nil && q.Get("path") == "" {
		err = invalid(sandbox.FieldError{Field: "path", Message: "is required"})
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	scope := r.Method + " /v1/sandboxes/" + ref + "/files/" + action
	call, err := IdempotencyParam{Key: r.Header.Get("Idempotency-Key")}.call(r.Context(), scope, q.Encode())
	again := false
	if err == nil {
		again, err = s.Control.Once(r.Context(), call, ref, func() error {
			seen := &statusWriter{ResponseWriter: w}
			s.Control.ProxyFiles(seen, r, ref, action)
			if seen.status >= http.StatusMultipleChoices {
				return errAnswered
			}
			return nil
		})
	}
	switch {
	case errors.Is(err, errAnswered):
	case err != nil:
		s.fail(w, r, err)
	case again:
		s.replayChange(w, r, ref, action, q)
	}
}

// replayChange answers a change that was made before.
func (s *server) replayChange(w http.ResponseWriter, r *http.Request, ref, action string, q url.Values) {
	w.Header().Set("Idempotency-Replayed", "true")
	if action == "" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	now := url.Values{"path": {q.Get("path")}}
	if q.Has("to") {
		now.Set("path", q.Get("to"))
	}
	if q.Has("user") {
		now.Set("user", q.Get("user"))
	}
	r = r.Clone(r.Context())
	r.Method, r.URL.RawQuery = http.MethodGet, now.Encode()
	s.Control.ProxyFiles(w, r, ref, "stat")
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func idempotencyParam() *huma.Param {
	return &huma.Param{Name: "Idempotency-Key", In: "header", Schema: &huma.Schema{Type: huma.TypeString},
		Description: "Names this request for 24 hours: sent again it changes nothing and answers what is there now, with another body it is a conflict"}
}
