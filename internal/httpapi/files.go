package httpapi

import (
	"io"
	"maps"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

const tagFiles = "Files"

// addFiles registers the routes for files. Their bodies pass through unread: control never looks at a tenant's bytes.
// Only what mkdir and move are told is read.
func (s *server) addFiles() {
	s.addContent()
	s.addTrees()
	s.addChanges()
	s.addArchives()
	s.raw(huma.Operation{
		OperationID: "write-stdin", Method: http.MethodPost, Path: "/v1/commands/{id}/stdin", Tags: []string{tagCommands},
		Summary: "Append to a command's standard input", Metadata: map[string]any{metaRawBody: true, metaToken: auth.ScopeCommands},
		Parameters: []*huma.Param{commandParam(),
			queryParam("offset", "Refuse unless so many bytes were accepted before", false, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}),
			queryParam("eof", "End standard input after these bytes", false, &huma.Schema{Type: huma.TypeBoolean})},
		RequestBody: &huma.RequestBody{Content: octets()},
		Responses:   withResponse(http.StatusOK, "The bytes were accepted", map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + "WrittenStdin"}}}),
	}, s.stdin)
	s.raw(huma.Operation{
		OperationID: "get-transcript", Method: http.MethodGet, Path: "/v1/commands/{id}/transcript", Tags: []string{tagCommands},
		Summary: "Read the transcript of a recorded command", Parameters: []*huma.Param{commandParam()}, Metadata: forTokens(auth.ScopeCommands),
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

// fileRoute registers a route below …/files; action is what follows in the path.
func (s *server) fileRoute(op huma.Operation, action string, parameters ...*huma.Param) {
	op.Tags, op.Path, op.Metadata = []string{tagFiles}, "/v1/sandboxes/{id}/files", map[string]any{metaRawBody: true, metaToken: auth.ScopeFiles}
	if action != "" {
		op.Path += "/" + action
	}
	op.Parameters = append([]*huma.Param{sandboxParam()}, parameters...)
	s.raw(op, func(w http.ResponseWriter, r *http.Request) { s.files(w, r, action) })
}

func (s *server) addContent() {
	s.fileRoute(huma.Operation{
		OperationID: "get-file", Method: http.MethodGet, Summary: "Read a file",
		Description: "A Range header with one range is answered with that part (206), or 416 when it begins behind the end.",
		Responses: withAnswers(withResponse(http.StatusOK, "The file's bytes", octets()), map[string]*huma.Response{
			"206": {Description: "The part that was asked for", Content: octets()}}),
	}, "", pathParam(), userParam())
	s.fileRoute(huma.Operation{
		OperationID: "put-file", Method: http.MethodPut, Summary: "Write a file",
		Description: "Writes the whole file: success means that all of it is on the guest's disk, anything else leaves what was there (unless write=in_place). The answer has its size and SHA-256.",
		RequestBody: &huma.RequestBody{Required: true, Content: octets()},
		Responses:   withResponse(http.StatusOK, "The file is on the guest's disk", answer("WrittenFile")),
	}, "", pathParam(), userParam(),
		queryParam("mode", "Permissions of a new file, octal; a file that is replaced keeps its own unless this is given", false, &huma.Schema{Type: huma.TypeString}),
		flagParam("create_parents", "Create directories that are missing"),
		queryParam("if_match", "Refuse (412) unless the file has this SHA-256", false, &huma.Schema{Type: huma.TypeString}),
		queryParam("write", "atomic (default) replaces the file when all of it is there; in_place writes into it, so that hard links and open files see it", false,
			&huma.Schema{Type: huma.TypeString, Enum: []any{"atomic", "in_place"}}))
}

func (s *server) addTrees() {
	s.fileRoute(huma.Operation{
		OperationID: "stat-file", Method: http.MethodGet, Summary: "Describe a file",
		Responses: withResponse(http.StatusOK, "What is there", answer("FileInfo")),
	}, "stat", pathParam(), userParam(), flagParam("follow", "Describe what a link leads to, not the link"))
	s.fileRoute(huma.Operation{
		OperationID: "list-files", Method: http.MethodGet, Summary: "List a directory",
		Description: "Pages are stable: a cursor stands for a place in the order of names, also when files come and go. Links are not followed.",
		Responses:   withResponse(http.StatusOK, "One page", answer("FileList")),
	}, "list", pathParam(), userParam(),
		queryParam("depth", "How many levels of directories; default 1, at most 64", false, &huma.Schema{Type: huma.TypeInteger}),
		queryParam("limit", "How many entries at most; default 100, at most 1000", false, &huma.Schema{Type: huma.TypeInteger}),
		queryParam("cursor", "next_cursor of the page before", false, &huma.Schema{Type: huma.TypeString}))
	s.fileRoute(huma.Operation{
		OperationID: "watch-files", Method: http.MethodGet, Summary: "Watch a directory or file",
		Description: "Server-sent events with an id; the data of each is a FileEvent. The answer begins when the watch is set. An event overflow says that events were lost; it comes first when the request has a Last-Event-ID. The stream ends when the directory is removed or moved.",
		Responses: withResponse(http.StatusOK, "Events", map[string]*huma.MediaType{"text/event-stream": {
			Schema: &huma.Schema{Type: huma.TypeString}}}),
	}, "watch", pathParam(), userParam(), flagParam("recursive", "Watch the directories below too"))
}

func (s *server) addArchives() {
	tar := map[string]*huma.MediaType{"application/x-tar": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	s.fileRoute(huma.Operation{
		OperationID: "get-archive", Method: http.MethodGet, Summary: "Read a directory as a tar",
		Description: "Names are relative to the directory; a file makes an archive of one entry. Devices, pipes and sockets are left out. What the user may not read is an error before the first byte.",
		Responses:   withResponse(http.StatusOK, "The archive", tar),
	}, "archive", pathParam(), userParam())
	s.fileRoute(huma.Operation{
		OperationID: "put-archive", Method: http.MethodPut, Summary: "Unpack a tar in a directory",
		Description: "Everything belongs to the user. Nothing is written outside the directory: entries whose names are absolute or lead out of it, also by way of links, and devices end the call. When it fails, what was unpacked before stays, and the error's cause says how much that is.",
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/x-tar": tar["application/x-tar"]}},
		Responses:   withResponse(http.StatusOK, "All of it is on the guest's disk", answer("UnpackedArchive")),
	}, "archive", pathParam(), userParam(), flagParam("create_parents", "Create the directory and its parents when they are missing"))
}

func withAnswers(all, more map[string]*huma.Response) map[string]*huma.Response {
	maps.Copy(all, more)
	return all
}

func answer(schema string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + schema}}}
}

func pathParam() *huma.Param {
	return queryParam("path", "Absolute, or relative to the user's home", true, &huma.Schema{Type: huma.TypeString})
}

func userParam() *huma.Param {
	return queryParam("user", "Whose permissions count; default: the template's user", false, &huma.Schema{Type: huma.TypeString})
}

func flagParam(name, doc string) *huma.Param {
	return queryParam(name, doc, false, &huma.Schema{Type: huma.TypeBoolean})
}

func (s *server) files(w http.ResponseWriter, r *http.Request, action string) {
	ref, err := sandboxRef(r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if r.URL.Query().Get("path") == "" {
		s.fail(w, r, invalid(sandbox.FieldError{Field: "path", Message: "is required"}))
		return
	}
	s.Control.ProxyFiles(w, r, ref, action)
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
