package httpapi

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/auth"
)

const schemaPrefix = "#/components/schemas/"

// humaConfig is huma without what it would add by itself: no $schema links in answers, no documentation that loads
// scripts from elsewhere, no other formats than JSON.
func humaConfig() huma.Config {
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "SPACE API", Version: "v1",
				Description: "Isolated Linux machines for programs that nobody trusts. JSON; RFC 3339 UTC times; unknown fields and parameters are refused."},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer"},
					"key":    {Type: "apiKey", In: "header", Name: "X-API-Key"},
					"token":  {Type: "http", Scheme: "bearer", Description: "A token for one sandbox, where a route lists this, with the scopes it lists"},
				},
			},
			Security: []map[string][]string{{"bearer": {}}, {"key": {}}},
		},
		Formats:       map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{toProblem},
	}
}

// finishSpec adds what huma cannot take from the types, and takes out its own error model.
func finishSpec(spec *huma.OpenAPI) {
	registry := spec.Components.Schemas
	for _, t := range []any{apiv1.Problem{}, apiv1.WrittenFile{}, apiv1.WrittenStdin{},
		apiv1.FileInfo{}, apiv1.FileList{}, apiv1.FileEvent{}, apiv1.UnpackedArchive{}, apiv1.Event{}, apiv1.EventGap{}, apiv1.LeaseChange{}} {
		registry.Schema(reflect.TypeOf(t), true, "")
	}
	schemas := registry.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	openAnswers(spec)
	nameTokens(spec)
	// huma writes pointers to objects without omitempty as required and never null.
	for _, at := range [][2]string{{"Operation", "result"}, {"Operation", "error"}, {"Command", "error"}, {"CreatedCommand", "error"}, {"ExecResult", "error"}} {
		if s := schemas[at[0]]; s != nil {
			p := s.Properties[at[1]]
			s.Properties[at[1]] = &huma.Schema{Description: p.Description, OneOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}}
		}
	}
}

// nameTokens writes into the description which routes are open to sandbox tokens, and with which scope.
func nameTokens(spec *huma.OpenAPI) {
	for _, item := range spec.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			if scope, ok := op.Metadata[metaToken].(auth.Scope); ok {
				scopes := []string{}
				if scope != anyScope {
					scopes = append(scopes, string(scope))
				}
				op.Security = append(slices.Clone(spec.Security), map[string][]string{"token": scopes})
			}
		}
	}
}

// openAnswers lets the objects of answers have more fields: later versions add some. What clients send stays closed.
func openAnswers(spec *huma.OpenAPI) {
	closed := map[string]bool{}
	for _, item := range spec.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil || op.RequestBody == nil {
				continue
			}
			for _, media := range op.RequestBody.Content {
				closed[strings.TrimPrefix(media.Schema.Ref, schemaPrefix)] = true
			}
		}
	}
	for name, schema := range spec.Components.Schemas.Map() {
		if !closed[name] {
			schema.AdditionalProperties = nil
		}
	}
}

// withResponse is errorResponses and one good answer.
func withResponse(status int, description string, content map[string]*huma.MediaType) map[string]*huma.Response {
	all := errorResponses()
	all[strconv.Itoa(status)] = &huma.Response{Description: description, Content: content}
	return all
}

// addDocs serves the description of the API, made once.
func (s *server) addDocs() error {
	spec, err := s.api.OpenAPI().MarshalJSON()
	if err != nil {
		return err
	}
	page, err := docsPage(s.api.OpenAPI())
	if err != nil {
		return err
	}
	s.static("/openapi.json", "application/vnd.oai.openapi+json;version=3.1", spec)
	s.static("/docs", "text/html; charset=utf-8", page)
	return nil
}

func (s *server) static(path, contentType string, body []byte) {
	op := &huma.Operation{Method: http.MethodGet, Path: path, Metadata: map[string]any{metaOpen: true}}
	s.handle(op, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		_, _ = w.Write(body)
	})
}
