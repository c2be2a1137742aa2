package httpapi_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

// box serves a Fake with one running sandbox called box.
func box(t *testing.T) *httpapitest.Server {
	t.Helper()
	s := httpapitest.Serve(t)
	create(t, s, `{"template":"mini","name":"box","env":{"FROM":"sandbox","BOTH":"sandbox"}}`)
	return s
}

func TestCreateCommand(t *testing.T) {
	t.Parallel()
	s := box(t)
	a := request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["echo","hi"],"env":{"A":"b"},"cwd":"/tmp","user":"root","timeout_seconds":1.5,"tag":"t"}`)
	got := read[apiv1.CreatedCommand](t, a, 201)
	if got.State != "created" || got.Attach.URL != "ws"+strings.TrimPrefix(s.DataURL, "http")+"/v1/attach/"+got.ID || got.Attach.Token == "" || got.Attach.ExpiresAt.IsZero() {
		t.Errorf("%+v", got)
	}
	var m map[string]any
	if err := json.Unmarshal(a.body, &m); err != nil {
		t.Fatal(err)
	}
	want := []string{"argv", "attach", "created_at", "cwd", "ended_at", "env", "epoch", "error", "exit_code", "id", "pid", "process_id", "pty", "pty_bytes", "reason", "record", "sandbox_id",
		"signal", "started_at", "state", "stderr_bytes", "stdin", "stdin_bytes", "stdout_bytes", "tag", "timeout_seconds", "truncated_bytes", "user"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(m))); diff != "" {
		t.Error(diff)
	}
	for _, null := range []string{"pid", "exit_code", "signal", "error", "pty", "started_at", "ended_at", "reason"} {
		if m[null] != nil {
			t.Errorf("%s is %v, want null", null, m[null])
		}
	}
	fetched := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+got.ID, ""), 200)
	if diff := cmp.Diff(got.Command, fetched); diff != "" {
		t.Error(diff)
	}
}

func TestStartedCommandIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := box(t)
	made := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["exit","3"],"start":true}`), 201)
	got := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+made.ID+"?wait=10", ""), 200)
	if got.State != "exited" || *got.ExitCode != 3 || *got.PID != 101 {
		t.Errorf("%+v", got)
	}
}

func TestTranscript(t *testing.T) {
	t.Parallel()
	s := box(t)
	got := read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", `{"argv":["echo","hi"],"record":true}`), 200)
	a := request(t, s, "GET", "/v1/commands/"+got.ID+"/transcript", "")
	if !got.Record || a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson" || !strings.Contains(string(a.body), `"data":"aGkK"`) || !strings.Contains(string(a.body), `"result"`) {
		t.Errorf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
	plain := read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", `{"argv":["echo","hi"]}`), 200)
	problem(t, request(t, s, "GET", "/v1/commands/"+plain.ID+"/transcript", ""), 404, "not_found")
	problem(t, request(t, s, "GET", "/v1/commands/cmd_x/transcript", ""), 404, "not_found")
	problem(t, requestAs(t, s, "", "GET", "/v1/commands/"+got.ID+"/transcript", ""), 401, "unauthenticated")
}

func TestTerminals(t *testing.T) {
	t.Parallel()
	s := box(t)
	made := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["trap"],"pty":{"cols":132,"rows":43}}`), 201)
	if made.PTY == nil || *made.PTY != (apiv1.PTY{Cols: 132, Rows: 43}) {
		t.Errorf("pty %+v", made.PTY)
	}
	resize := "/v1/commands/" + made.ID + "/resize"
	read[apiv1.Command](t, request(t, s, "POST", resize, `{"cols":80,"rows":24}`), 200)
	for _, bad := range []string{`{}`, `{"cols":80}`, `{"cols":80,"rows":0}`, `{"cols":70000,"rows":1}`, `{"cols":80.5,"rows":1}`} {
		problem(t, request(t, s, "POST", resize, bad), 400, "invalid_argument")
	}
	// Deleted before its start: it never starts.
	gone := read[apiv1.Command](t, request(t, s, "DELETE", "/v1/commands/"+made.ID, ""), 200)
	if gone.State != "failed" || gone.Error == nil || gone.Error.Code != "canceled" {
		t.Errorf("%+v", gone)
	}
	problem(t, request(t, s, "POST", resize, `{"cols":80,"rows":24}`), 409, "not_running")
	plain := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["trap"]}`), 201)
	problem(t, request(t, s, "POST", "/v1/commands/"+plain.ID+"/resize", `{"cols":80,"rows":24}`), 409, "invalid_state")
}

func TestSignalAndKill(t *testing.T) {
	t.Parallel()
	s := box(t)
	start := func(program string) string {
		return read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["`+program+`"],"start":true}`), 201).ID
	}
	id := start("trap")
	for _, bad := range []string{"TERM", "15", "SIGNOPE", "sigterm", ""} {
		problem(t, request(t, s, "POST", "/v1/commands/"+id+"/signal", `{"signal":"`+bad+`"}`), 400, "invalid_argument")
	}
	read[apiv1.Command](t, request(t, s, "POST", "/v1/commands/"+id+"/signal", `{"signal":"SIGTERM"}`), 200)
	if got := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+id+"?wait=10", ""), 200); *got.ExitCode != 7 {
		t.Errorf("%+v", got)
	}
	problem(t, request(t, s, "POST", "/v1/commands/"+id+"/signal", `{"signal":"SIGTERM"}`), 409, "not_running")

	id = start("die")
	read[apiv1.Command](t, request(t, s, "DELETE", "/v1/commands/"+id, ""), 200)
	got := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+id+"?wait=10", ""), 200)
	if got.State != "exited" || *got.Signal != "SIGKILL" || *got.ExitCode != -1 {
		t.Errorf("%+v", got)
	}
	if again := read[apiv1.Command](t, request(t, s, "DELETE", "/v1/commands/"+id, ""), 200); *again.Signal != "SIGKILL" {
		t.Errorf("%+v", again)
	}
}

// TestIdempotentSignal: a signal that is asked for twice with one key is sent once.
func TestIdempotentSignal(t *testing.T) {
	t.Parallel()
	s := box(t)
	id := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["trap"],"start":true}`), 201).ID
	send := func(method, path, body, key string) answer {
		return request(t, s, method, "/v1/commands/"+id+path, body, "Idempotency-Key: "+key)
	}
	if a := send("POST", "/signal", `{"signal":"SIGTERM"}`, "k"); a.Header.Get("Idempotency-Replayed") != "" {
		t.Error("the first is no replay")
	}
	read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+id+"?wait=10", ""), 200)
	again := send("POST", "/signal", `{"signal":"SIGTERM"}`, "k") // it has ended: only a replay can succeed
	if got := read[apiv1.Command](t, again, 200); got.State != "exited" || again.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%+v %v", got, again.Header)
	}
	problem(t, send("POST", "/signal", `{"signal":"SIGINT"}`, "k"), 409, "idempotency_conflict")
	problem(t, send("POST", "/signal", `{"signal":"SIGINT"}`, "other"), 409, "not_running")
	problem(t, send("POST", "/signal", `{"signal":"SIGINT"}`, "other"), 409, "not_running") // a failure leaves the key unused
	for _, row := range [][2]string{{"DELETE", ""}, {"POST", "/attach"}} {
		if a := send(row[0], row[1], "", "k"); a.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%v: a key counts for one route only", row)
		}
		if a := send(row[0], row[1], "", "k"); a.Header.Get("Idempotency-Replayed") != "true" || a.StatusCode >= 300 {
			t.Errorf("%v: %d %v", row, a.StatusCode, a.Header)
		}
	}
}

func TestAttachToken(t *testing.T) {
	t.Parallel()
	s := box(t)
	made := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["echo"]}`), 201)
	got := read[apiv1.Attached](t, request(t, s, "POST", "/v1/commands/"+made.ID+"/attach", ""), 201)
	if diff := cmp.Diff(made.Attach, got.Attach); diff != "" {
		t.Error(diff)
	}
	problem(t, request(t, s, "POST", "/v1/commands/"+made.ID+"/attach", `{"takeover":true}`), 400, "unknown_field")
	problem(t, request(t, s, "POST", "/v1/commands/cmd_aaaaaaaaaaaaaaaaaaaa/attach", ""), 404, "not_found")
	problem(t, request(t, s, "POST", "/v1/commands/nonsense/attach", ""), 404, "not_found")
}

func TestListCommands(t *testing.T) {
	t.Parallel()
	s := box(t)
	for _, body := range []string{`{"argv":["echo"],"tag":"a"}`, `{"argv":["trap"],"tag":"b","start":true}`, `{"argv":["nope"],"start":true}`} {
		read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", body), 201)
	}
	for query, want := range map[string][]string{
		"": {"nope", "trap", "echo"}, "order=asc&limit=2": {"echo", "trap"}, "tag=b": {"trap"}, "pid=101": {"trap"},
		"state=created,failed": {"nope", "echo"}, "tag=none": {},
	} {
		got := []string{}
		for _, c := range read[apiv1.List[apiv1.Command]](t, request(t, s, "GET", "/v1/sandboxes/box/commands?"+query, ""), 200).Items {
			got = append(got, c.Argv[0])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	s := box(t)
	for name, row := range map[string]struct {
		body string
		want apiv1.ExecResult // only what is set is compared
		code int
	}{
		"output":      {`{"argv":["echo","a","b c"]}`, apiv1.ExecResult{Stdout: "a b c\n", Encoding: "utf-8"}, 0},
		"stderr":      {`{"argv":["warn","oops"],"start":true}`, apiv1.ExecResult{Stderr: "oops\n", Encoding: "utf-8"}, 0},
		"stdin":       {`{"argv":["cat"],"stdin_b64":"aMOpCg=="}`, apiv1.ExecResult{Stdout: "hé\n", Encoding: "utf-8"}, 0},
		"empty stdin": {`{"argv":["cat"],"stdin":true}`, apiv1.ExecResult{Encoding: "utf-8"}, 0},
		"no stdin":    {`{"argv":["cat"]}`, apiv1.ExecResult{Encoding: "utf-8"}, 0},
		"env":         {`{"argv":["env","BOTH"],"env":{"BOTH":"command"}}`, apiv1.ExecResult{Stdout: "command\n", Encoding: "utf-8"}, 0},
		"exit code":   {`{"argv":["exit","7"]}`, apiv1.ExecResult{Encoding: "utf-8"}, 7},
		"binary":      {`{"argv":["bytes","2"]}`, apiv1.ExecResult{Stdout: "//8=", Encoding: "base64"}, 0},
	} {
		got := read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", row.body), 200)
		if got.Stdout != row.want.Stdout || got.Stderr != row.want.Stderr || got.Encoding != row.want.Encoding || got.State != "exited" || *got.ExitCode != row.code {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// An argv that does not exist is an answer, not an error: the session exists.
func TestExecThatNeverStarted(t *testing.T) {
	t.Parallel()
	s := box(t)
	got := read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", `{"argv":["nope"]}`), 200)
	if got.State != "failed" || got.Error.Code != "command_not_found" || got.ExitCode != nil {
		t.Errorf("%+v", got)
	}
	problem(t, request(t, s, "POST", "/v1/sandboxes/nobody/exec", `{"argv":["echo"]}`), 404, "not_found")
	read[apiv1.Lifecycle](t, request(t, s, "POST", "/v1/sandboxes", `{"template":"slow","name":"early"}`), 202)
	problem(t, request(t, s, "POST", "/v1/sandboxes/early/exec", `{"argv":["echo"]}`), 409, "invalid_state")
}

func TestExecCutsOutput(t *testing.T) {
	t.Parallel()
	s := box(t)
	got := read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", `{"argv":["bytes","1500000"]}`), 200)
	data, err := base64.StdEncoding.DecodeString(got.Stdout)
	if err != nil || len(data) != 1<<20 || got.StdoutBytes != 1_500_000 {
		t.Errorf("%d bytes of %d, %v", len(data), got.StdoutBytes, err)
	}
	// The cut goes through a character of two bytes: what is left is still text.
	in := base64.StdEncoding.EncodeToString([]byte("x" + strings.Repeat("é", 1<<18) + "y"))
	got = read[apiv1.ExecResult](t, request(t, s, "POST", "/v1/sandboxes/box/exec", `{"argv":["twice"],"stdin_b64":"`+in+`"}`), 200)
	if got.Encoding != "utf-8" || len(got.Stdout) != 1<<20-1 {
		t.Errorf("%s, %d bytes", got.Encoding, len(got.Stdout))
	}
}

func TestCommandIdempotency(t *testing.T) {
	t.Parallel()
	s := box(t)
	for _, path := range []string{"/v1/sandboxes/box/commands", "/v1/sandboxes/box/exec"} {
		post := func(body string) answer { return request(t, s, "POST", path, body, "Idempotency-Key: k") }
		first, again := post(`{"argv":["echo","1"]}`), post(`{"argv":["echo","1"]}`)
		var a, b struct{ ID string }
		if json.Unmarshal(first.body, &a) != nil || json.Unmarshal(again.body, &b) != nil || a.ID == "" || a.ID != b.ID {
			t.Errorf("%s, then %s", first.body, again.body)
		}
		if first.Header.Get("Idempotency-Replayed") != "" || again.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s: %v, then %v", path, first.Header, again.Header)
		}
		problem(t, post(`{"argv":["echo","2"]}`), 409, "idempotency_conflict")
	}
}

func TestStdin(t *testing.T) {
	t.Parallel()
	s := box(t)
	made := read[apiv1.CreatedCommand](t, request(t, s, "POST", "/v1/sandboxes/box/commands", `{"argv":["cat"],"stdin":true,"start":true}`), 201)
	path := "/v1/commands/" + made.ID + "/stdin"
	if got := read[apiv1.WrittenStdin](t, request(t, s, "POST", path, "\xff{raw"), 200); got.StdinBytes != 5 {
		t.Errorf("%+v", got)
	}
	p := problem(t, request(t, s, "POST", path+"?offset=2", "x"), 409, "stdin_offset_mismatch")
	if p.StdinBytes == nil || *p.StdinBytes != 5 {
		t.Errorf("%+v", p)
	}
	read[apiv1.WrittenStdin](t, request(t, s, "POST", path+"?offset=5&eof=true", ""), 200)
	if got := read[apiv1.Command](t, request(t, s, "GET", "/v1/commands/"+made.ID+"?wait=10", ""), 200); got.StdoutBytes != 5 {
		t.Errorf("%+v", got)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := box(t)
	content := strings.Repeat("\x00\xff", 1<<20) // more than a JSON body may have
	put := read[apiv1.WrittenFile](t, request(t, s, "PUT", "/v1/sandboxes/box/files?path=/tmp/a%20b", content, "Content-Type: text/html"), 200)
	if put.SizeBytes != 2<<20 || len(put.SHA256) != 64 {
		t.Errorf("%+v", put)
	}
	if a := request(t, s, "GET", "/v1/sandboxes/box/files?path=/tmp/a%20b", ""); a.StatusCode != 200 || string(a.body) != content {
		t.Errorf("%d, %d bytes", a.StatusCode, len(a.body))
	}
	problem(t, request(t, s, "GET", "/v1/sandboxes/box/files?path=none", ""), 404, "not_found")
	problem(t, request(t, s, "GET", "/v1/sandboxes/box/files?path=/tmp/", ""), 409, "is_directory")
	problem(t, request(t, s, "GET", "/v1/sandboxes/nobody/files?path=a", ""), 404, "not_found")
}

// The bodies of mkdir and move are read, and checked as any other.
func TestMkdirAndMove(t *testing.T) {
	t.Parallel()
	s := box(t)
	const mkdir, move = "/v1/sandboxes/box/files/mkdir", "/v1/sandboxes/box/files/move"
	made := read[apiv1.FileInfo](t, request(t, s, "POST", mkdir+"?user=root", `{"path":"a/b","mode":"0755","create_parents":true}`), 200)
	if made.Type != "directory" || made.Path != "/home/user/a/b" {
		t.Errorf("%+v", made)
	}
	moved := read[apiv1.FileInfo](t, request(t, s, "POST", move, `{"from":"a/b","to":"a/c","overwrite":true}`), 200)
	if moved.Path != "/home/user/a/c" {
		t.Errorf("%+v", moved)
	}
	for body, row := range map[string]struct{ path, code, field string }{
		``:                           {mkdir, "malformed_body", ""},
		`x`:                          {mkdir, "malformed_body", ""},
		`{}`:                         {mkdir, "invalid_argument", "path"},
		`{"path":""}`:                {mkdir, "invalid_argument", "path"},
		`{"path":5}`:                 {mkdir, "invalid_argument", "path"},
		`{"path":"a","mode":"0888"}`: {mkdir, "invalid_argument", "mode"},
		`{"path":"a","user":"root"}`: {mkdir, "unknown_field", "user"},
		`{"from":"a"}`:               {move, "invalid_argument", "to"},
		`{"from":"a","to":"b","overwrite":"yes"}`: {move, "invalid_argument", "overwrite"},
	} {
		p := problem(t, request(t, s, "POST", row.path, body), 400, row.code)
		if row.field != "" && (len(p.Fields) != 1 || p.Fields[0].Field != row.field) {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if p := problem(t, request(t, s, "POST", mkdir+"?path=x", `{"path":"a"}`), 400, "invalid_argument"); p.Fields[0].Field != "path" {
		t.Errorf("%+v", p)
	}
	if p := problem(t, request(t, s, "POST", mkdir, `{"path":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "body_too_large"); p.Remedy == "" {
		t.Errorf("%+v", p)
	}
}

// A change that is sent again with its Idempotency-Key is not made again.
func TestFileChangesOnce(t *testing.T) {
	t.Parallel()
	s := box(t)
	const files = "/v1/sandboxes/box/files"
	request(t, s, "PUT", files+"?path=a", "content")
	for i, want := range []string{"", "true", "true"} {
		a := request(t, s, "POST", files+"/move", `{"from":"a","to":"b"}`, "Idempotency-Key: m")
		if info := read[apiv1.FileInfo](t, a, 200); info.Path != "/home/user/b" || a.Header.Get("Idempotency-Replayed") != want {
			t.Errorf("move %d: %+v, %v", i, info, a.Header)
		}
	}
	problem(t, request(t, s, "POST", files+"/move", `{"from":"b","to":"c"}`, "Idempotency-Key: m"), 409, "idempotency_conflict")
	for i, want := range []string{"", "true"} {
		if a := request(t, s, "DELETE", files+"?path=b", "", "Idempotency-Key: d"); a.StatusCode != 204 || a.Header.Get("Idempotency-Replayed") != want {
			t.Errorf("delete %d: %d, %v", i, a.StatusCode, a.Header)
		}
	}
	for range 2 { // one that fails leaves the key unused
		problem(t, request(t, s, "DELETE", files+"?path=none", "", "Idempotency-Key: n"), 404, "not_found")
	}
	problem(t, request(t, s, "DELETE", files+"?path=b", "", "Idempotency-Key: "+strings.Repeat("x", 129)), 400, "invalid_argument")
}

func TestFileRoutes(t *testing.T) {
	t.Parallel()
	s := box(t)
	const files = "/v1/sandboxes/box/files"
	request(t, s, "PUT", files+"?path=d/file", "0123456789")
	if a := request(t, s, "GET", files+"?path=d/file", "", "Range: bytes=2-4"); a.StatusCode != 206 || string(a.body) != "234" || a.Header.Get("Content-Range") != "bytes 2-4/10" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if info := read[apiv1.FileInfo](t, request(t, s, "GET", files+"/stat?path=d/file", ""), 200); info.SizeBytes != 10 || info.SymlinkTarget != nil {
		t.Errorf("%+v", info)
	}
	if list := read[apiv1.FileList](t, request(t, s, "GET", files+"/list?path=d", ""), 200); len(list.Items) != 1 {
		t.Errorf("%+v", list)
	}
	archive := request(t, s, "GET", files+"/archive?path=d", "")
	if archive.StatusCode != 200 || archive.Header.Get("Content-Type") != "application/x-tar" {
		t.Errorf("%d %v", archive.StatusCode, archive.Header)
	}
	done := read[apiv1.UnpackedArchive](t, request(t, s, "PUT", files+"/archive?path=e", string(archive.body)), 200)
	if done.Entries != 1 || done.SizeBytes != 10 {
		t.Errorf("%+v", done)
	}
	if a := request(t, s, "GET", files+"/watch?path=d", ""); a.Header.Get("Content-Type") != "text/event-stream" || !strings.Contains(string(a.body), "event: create") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	problem(t, request(t, s, "DELETE", files+"?path=d", ""), 409, "directory_not_empty")
	for _, q := range []string{"?path=d&recursive=true", "?path=d&missing_ok=true"} {
		if a := request(t, s, "DELETE", files+q, ""); a.StatusCode != 204 || len(a.body) != 0 {
			t.Errorf("%d %s", a.StatusCode, a.body)
		}
	}
	problem(t, request(t, s, "DELETE", files+"?path=d", ""), 404, "not_found")
}
