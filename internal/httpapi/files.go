package httpapi

import (
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/sandbox"
)

// addFiles registers the routes whose bodies pass through unread: control never looks at a tenant's bytes.
func (s *server) addFiles() {
	raw := map[string]any{metaRawBody: true}
	path := queryParam("path", "Absolute, or relative to the user's home", true, &huma.Schema{Type: huma.TypeString})
	user := queryParam("user", "Whose permissions count; default: the template's user", false, &huma.Schema{Type: huma.TypeString})
	s.raw(huma.Operation{
		OperationID: "get-file", Method: http.MethodGet, Path: "/v1/sandboxes/{id}/files", Tags: []string{"Files"},
		Summary: "Read a file", Metadata: raw, Parameters: []*huma.Param{sandboxParam(), path, user},
		Responses: withResponse(http.StatusOK, "The file's bytes", octets()),
	}, s.files)
	s.raw(huma.Operation{
		OperationID: "put-file", Method: http.MethodPut, Path: "/v1/sandboxes/{id}/files", Tags: []string{"Files"},
		Summary: "Write a file", Metadata: raw, Parameters: []*huma.Param{sandboxParam(), path, user,
			queryParam("mode", "Permissions of a new file, octal; a file that is replaced keeps its own unless this is given", false, &huma.Schema{Type: huma.TypeString}),
			queryParam("create_parents", "Create directories that are missing", false, &huma.Schema{Type: huma.TypeBoolean})},
		Description: "Writes the whole file: success means that all of it is on the guest's disk, anything else leaves what was there. The answer has its size and SHA-256.",
		RequestBody: &huma.RequestBody{Required: true, Content: octets()},
		Responses:   withResponse(http.StatusOK, "The file is on the guest's disk", map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + "WrittenFile"}}}),
	}, s.files)
	s.raw(huma.Operation{
		OperationID: "write-stdin", Method: http.MethodPost, Path: "/v1/commands/{id}/stdin", Tags: []string{tagCommands},
		Summary: "Append to a command's standard input", Metadata: raw,
		Parameters: []*huma.Param{commandParam(),
			queryParam("offset", "Refuse unless so many bytes were accepted before", false, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}),
			queryParam("eof", "End standard input after these bytes", false, &huma.Schema{Type: huma.TypeBoolean})},
		RequestBody: &huma.RequestBody{Content: octets()},
		Responses:   withResponse(http.StatusOK, "The bytes were accepted", map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + "WrittenStdin"}}}),
	}, s.stdin)
	s.raw(huma.Operation{
		OperationID: "get-transcript", Method: http.MethodGet, Path: "/v1/commands/{id}/transcript", Tags: []string{tagCommands},
		Summary: "Read the transcript of a recorded command", Parameters: []*huma.Param{commandParam()},
		Description: "One JSON object a line: output and gaps in the order of their arrival, and last, once it has ended, the result. At most 32 MiB of a session are kept, the newest; it stays when the sandbox is gone.",
		Responses:   withResponse(http.StatusOK, "The transcript so far", map[string]*huma.MediaType{"application/x-ndjson": {Schema: &huma.Schema{Type: huma.TypeString}}}),
	}, s.transcript)
}

// transcript answers with what is kept of a recorded session.
func (s *server) transcript(w http.ResponseWriter, r *http.Request) {
	id, err := sandbox.ParseCommandID(r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	body, err := s.Control.Transcript(r.Context(), id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer body.Close()
	head := w.Header()
	head.Set("Content-Type", "application/x-ndjson")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Cache-Control", "no-store")
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler) // the one way to end a body visibly too early
	}
}

func (s *server) files(w http.ResponseWriter, r *http.Request) {
	ref, err := sandboxRef(r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if r.URL.Query().Get("path") == "" {
		s.fail(w, r, invalid(sandbox.FieldError{Field: "path", Message: "is required"}))
		return
	}
	s.Control.ProxyFiles(w, r, ref)
}

func (s *server) stdin(w http.ResponseWriter, r *http.Request) {
	id, err := sandbox.ParseCommandID(r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.Control.ProxyStdin(w, r, id)
}

func queryParam(name, doc string, required bool, schema *huma.Schema) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: doc, Required: required, Schema: schema}
}

func sandboxParam() *huma.Param {
	return &huma.Param{Name: "id", In: "path", Description: "Id or name of the sandbox", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
}

func commandParam() *huma.Param {
	return &huma.Param{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
}

func octets() map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
}
