package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// serve returns a fake server and a client of it.
func serve(t *testing.T) (*httpapitest.Server, *client.Client) {
	t.Helper()
	s := httpapitest.Serve(t)
	return s, client.New(s.URL+"/", httpapitest.AdminKey)
}

// box returns a client and a running sandbox named box.
func box(t *testing.T) (*httpapitest.Server, *client.Client, *apiv1.Sandbox) {
	t.Helper()
	s, c := serve(t)
	made, err := c.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", Name: "box"}, client.Wait(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return s, c, &made.Sandbox
}

func TestSandboxes(t *testing.T) {
	t.Parallel()
	_, c, made := box(t)
	ctx := t.Context()
	got, err := c.Sandbox(ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, got); diff != "" {
		t.Error(diff)
	}
	name := "other"
	if got, err = c.PatchSandbox(ctx, made.ID, apiv1.PatchSandbox{Name: &name, Metadata: &map[string]string{"team": "a b&c"}}); err != nil || got.Name != "other" {
		t.Fatalf("%+v, %v", got, err)
	}
	list, err := c.ListSandboxes(ctx, client.SandboxQuery{Page: client.Page{Limit: 10, Count: true, Ascending: true}, States: []string{"running", "failed"},
		Metadata: map[string]string{"team": "a b&c"}, Template: "mini:latest", CreatedAfter: made.CreatedAt.Add(-time.Nanosecond)})
	if err != nil || len(list.Items) != 1 || *list.Total != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	gone, err := c.DeleteSandbox(ctx, "other", client.Wait(10*time.Second), client.IfState("running"), client.IfBusyFail())
	if err != nil || gone.Sandbox.State != "deleted" {
		t.Fatalf("%+v, %v", gone, err)
	}
	if _, err := c.Sandbox(ctx, "other"); !client.IsNotFound(err) {
		t.Errorf("after delete: %v", err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	_, c := serve(t)
	_, err := c.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "nope"})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 404 || client.Code(err) != "template_not_found" || e.Remedy == "" || client.IsRetryable(err) {
		t.Errorf("%+v", err)
	}
	if err.Error() != "there is no such template (nope)" {
		t.Errorf("%q", err)
	}
	vcpus := 0
	_, err = c.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", VCPUs: &vcpus})
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != "vcpus" {
		t.Errorf("%+v", err)
	}
	_, err = client.New(c.BaseURL, "e2b_bad").Sandbox(t.Context(), "box")
	if client.Code(err) != "unauthenticated" {
		t.Errorf("%v", err)
	}
}

// What answers may be anything: a proxy, another program.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		status      int
		contentType string
		body        string
		want        string
	}{
		"html error":    {502, "text/html", "<h1>Bad Gateway</h1>", "unexpected answer: HTTP status 502 Bad Gateway"},
		"form, no code": {500, "application/problem+json", `{"title":"x"}`, "unexpected answer: HTTP status 500 Internal Server Error"},
		"not the form":  {400, "application/problem+json", `nope`, "unexpected answer: HTTP status 400 Bad Request"},
		"html success":  {200, "text/html", "<h1>Welcome</h1>", "the answer is not what API v1 says: invalid character '<' looking for beginning of value"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", row.contentType)
			w.WriteHeader(row.status)
			_, _ = io.WriteString(w, row.body)
		}))
		_, err := client.New(s.URL, "k").Sandbox(t.Context(), "box")
		s.Close()
		if err == nil || err.Error() != row.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	_, c := serve(t)
	in := apiv1.CreateSandbox{Template: "mini"}
	a, err1 := c.CreateSandbox(t.Context(), in, client.IdempotencyKey("k"))
	b, err2 := c.CreateSandbox(t.Context(), in, client.IdempotencyKey("k"))
	if err1 != nil || err2 != nil || a.Operation.ID != b.Operation.ID {
		t.Errorf("%v %v", err1, err2)
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	s, c := serve(t)
	ctx := t.Context()
	made, err := c.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		op, err := c.WaitOperation(ctx, made.Operation.ID)
		if err == nil && op.State != "succeeded" {
			err = errors.New(op.State)
		}
		waited <- err
	}()
	s.Finish()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	list, err := c.ListOperations(ctx, client.OperationQuery{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if made, err = c.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "slow"}); err != nil {
		t.Fatal(err)
	}
	if op, err := c.CancelOperation(ctx, made.Operation.ID); err != nil || op.State != "canceled" {
		t.Errorf("%+v, %v", op, err)
	}
	if _, err := c.WaitOperation(ctx, made.Operation.ID); client.Code(err) != "canceled" {
		t.Errorf("%v", err)
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	ctx := t.Context()
	made, err := c.CreateCommand(ctx, "box", apiv1.CreateCommand{Argv: []string{"cat"}, Stdin: true, Start: true, Tag: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.WriteStdin(ctx, made.ID, strings.NewReader("abc"), client.StdinOptions{}); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
	two := uint64(2)
	_, err = c.WriteStdin(ctx, made.ID, strings.NewReader("abc"), client.StdinOptions{Offset: &two})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != "stdin_offset_mismatch" || *e.StdinBytes != 3 {
		t.Errorf("%v", err)
	}
	if _, err := c.WriteStdin(ctx, made.ID, http.NoBody, client.StdinOptions{EOF: true}); err != nil {
		t.Error(err)
	}
	if cmd, err := c.WaitCommand(ctx, made.ID); err != nil || cmd.StdoutBytes != 3 {
		t.Errorf("%+v, %v", cmd, err)
	}
	list, err := c.ListCommands(ctx, "box", client.CommandQuery{Tag: "t", PID: 101, States: []string{"exited"}})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	result, err := c.Exec(ctx, "box", apiv1.Exec{Argv: []string{"echo", "hi"}})
	if err != nil || result.Stdout != "hi\n" || *result.ExitCode != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	if made, err = c.CreateCommand(ctx, "box", apiv1.CreateCommand{Argv: []string{"die"}, Start: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Signal(ctx, made.ID, "SIGNOPE"); client.Code(err) != "invalid_argument" {
		t.Errorf("%v", err)
	}
	if _, err := c.Kill(ctx, made.ID); err != nil {
		t.Error(err)
	}
	if cmd, err := c.WaitCommand(ctx, made.ID); err != nil || *cmd.Signal != "SIGKILL" {
		t.Errorf("%+v, %v", cmd, err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	ctx := t.Context()
	content := bytes.Repeat([]byte{0, 255}, 1<<20)
	w, err := c.WriteFile(ctx, "box", "/tmp/a &?b", bytes.NewReader(content), client.FileOptions{User: "root", Size: int64(len(content))})
	if err != nil || w.SizeBytes != 2<<20 {
		t.Fatalf("%+v, %v", w, err)
	}
	if _, err := c.WriteFile(ctx, "box", "/tmp/streamed", io.MultiReader(bytes.NewReader(content)), client.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	f, err := c.ReadFile(ctx, "box", "/tmp/a &?b", client.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) || f.Size != 2<<20 {
		t.Errorf("%d bytes of %d, %v", len(got), f.Size, err)
	}
	if _, err := c.ReadFile(ctx, "box", "none", client.FileOptions{}); !client.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

func TestFileTrees(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	ctx := t.Context()
	if d, err := c.MakeDirectory(ctx, "box", "root", apiv1.MakeDirectory{Path: "d/e", CreateParents: true}); err != nil || d.Type != apiv1.FileTypeDirectory {
		t.Fatalf("%+v, %v", d, err)
	}
	for _, name := range []string{"d/1", "d/2", "d/3"} {
		if _, err := c.WriteFile(ctx, "box", name, strings.NewReader("0123456789"), client.FileOptions{InPlace: true}); err != nil {
			t.Fatal(err)
		}
	}
	for opts, want := range map[client.FileOptions]string{{Offset: 3}: "3456789", {Offset: 3, Length: 2}: "34", {Length: 1}: "0"} {
		f, err := c.ReadFile(ctx, "box", "d/1", opts)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(f); err != nil || string(got) != want || f.Size != int64(len(want)) {
			t.Errorf("%+v: %q, %v", opts, got, err)
		}
		f.Close()
	}
	var names []string
	for page := (&apiv1.FileList{}); ; {
		var err error
		if page, err = c.ListFiles(ctx, "box", "d", client.ListOptions{Limit: 3, Depth: 1, Cursor: page.NextCursor}); err != nil {
			t.Fatal(err)
		}
		for _, f := range page.Items {
			names = append(names, f.Path)
		}
		if page.NextCursor == "" {
			break
		}
	}
	if d := cmp.Diff([]string{"/home/user/d/1", "/home/user/d/2", "/home/user/d/3", "/home/user/d/e"}, names); d != "" {
		t.Error(d)
	}
	if f, err := c.MoveFile(ctx, "box", "", apiv1.MoveFile{From: "d/3", To: "d/4", Overwrite: true}); err != nil || f.Path != "/home/user/d/4" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := c.StatFile(ctx, "box", "d/4", client.StatOptions{Follow: true}); err != nil || f.SizeBytes != 10 {
		t.Errorf("%+v, %v", f, err)
	}
	if err := c.RemoveFile(ctx, "box", "d", client.RemoveOptions{}); client.Code(err) != "directory_not_empty" {
		t.Errorf("%v", err)
	}
	archive, err := c.ReadArchive(ctx, "box", "d", client.FileOptions{User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if done, err := c.WriteArchive(ctx, "box", "copy", archive, client.FileOptions{CreateParents: true}); err != nil || done.SizeBytes != 30 {
		t.Errorf("%+v, %v", done, err)
	}
	if err := c.RemoveFile(ctx, "box", "d", client.RemoveOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	if err := c.RemoveFile(ctx, "box", "d", client.RemoveOptions{MissingOK: true}); err != nil {
		t.Error(err)
	}
}

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	_, c, _ := box(t)
	w, err := c.WatchFiles(t.Context(), "box", "d", client.WatchOptions{Recursive: true, LastEventID: "7"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, want := range []string{"1 overflow /home/user/d", "2 create /home/user/d/new"} {
		e, err := w.Next()
		if got := w.ID + " " + e.Type + " " + e.Path; err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := w.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// TestWatchOfAnotherServer: what is no stream of events, or breaks, is an error and takes no memory.
func TestWatchOfAnotherServer(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"no JSON": "data: x\n\n", "endless line": strings.Repeat("x", 1<<20)} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		t.Cleanup(s.Close)
		w, err := client.New(s.URL, "").WatchFiles(t.Context(), "box", "d", client.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := w.Next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		w.Close()
	}
}

func TestTemplatesAndNode(t *testing.T) {
	t.Parallel()
	s, c := serve(t)
	ctx := t.Context()
	list, err := c.ListTemplates(ctx, client.Page{Limit: 1})
	if err != nil || len(list.Items) != 1 || list.NextCursor == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if one, err := c.Template(ctx, "ns/broken:latest"); err != nil || one.Name != "ns/broken" {
		t.Errorf("%+v, %v", one, err)
	}
	if n, err := c.Node(ctx); err != nil || n.InstallationID != "abc123" {
		t.Errorf("%+v, %v", n, err)
	}
	if err := client.New(s.URL, "").Ready(ctx); err != nil {
		t.Error(err)
	}
	s.SetNotReady(sandbox.Errorf(sandbox.CodeUnavailable, "not yet"))
	if err := c.Ready(ctx); client.Code(err) != "unavailable" || !client.IsRetryable(err) {
		t.Errorf("%v", err)
	}
}

// A wait outlives a server that is away for a moment, but not one that refuses.
func TestWaitsBearARestart(t *testing.T) {
	t.Parallel()
	s, _ := serve(t)
	fails := 3
	c := client.New(s.URL, httpapitest.AdminKey)
	c.HTTPClient = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet && fails > 0 {
			fails--
			return nil, errors.New("connection refused")
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	made, err := c.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitOperation(t.Context(), made.Operation.ID); err != nil || fails != 0 {
		t.Errorf("%v, %d left", err, fails)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.WaitOperation(ctx, made.Operation.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := c.WaitOperation(t.Context(), "op_aaaaaaaaaaaaaaaaaaaa"); !client.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
