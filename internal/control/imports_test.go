package control_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ImportTemplate keeps the archive's digest as the template's.
func (n *fakeNode) ImportTemplate(ctx context.Context, stream *connect.ClientStream[nodev1.ImportTemplateRequest]) (*connect.Response[nodev1.ImportTemplateResponse], error) {
	if !stream.Receive() {
		return nil, stream.Err()
	}
	name := stream.Msg().GetStart().GetName()
	if err := n.enter(ctx, "ImportTemplate", name); err != nil {
		return nil, err
	}
	sum := sha256.New()
	for stream.Receive() {
		sum.Write(stream.Msg().GetData())
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	t := &nodev1.Template{Digest: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Names: []string{name}, CreatedAt: timestamppb.Now(), MinDiskMib: 64}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.templates = append(n.templates, t)
	return connect.NewResponse(&nodev1.ImportTemplateResponse{Template: t, Stages: []*nodev1.Stage{{Name: "scan", Ms: 1}}}), nil
}

// DeleteTemplate takes a name away, or the template.
func (n *fakeNode) DeleteTemplate(ctx context.Context, req *connect.Request[nodev1.DeleteTemplateRequest]) (*connect.Response[nodev1.DeleteTemplateResponse], error) {
	if err := n.enter(ctx, "DeleteTemplate", req.Msg.Digest); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := []*nodev1.Template{}
	for _, t := range n.templates {
		switch {
		case t.Digest != req.Msg.Digest:
		case req.Msg.Name == "":
			continue
		default:
			t = &nodev1.Template{Digest: t.Digest, CreatedAt: t.CreatedAt, MinDiskMib: t.MinDiskMib,
				Names: slices.DeleteFunc(slices.Clone(t.Names), func(s string) bool { return s == req.Msg.Name })}
		}
		kept = append(kept, t)
	}
	n.templates = kept
	return connect.NewResponse(&nodev1.DeleteTemplateResponse{}), nil
}

// fakeImages is a registry whose images are their names.
type fakeImages struct{}

func (fakeImages) Check(image string) error {
	if image == "" {
		return sandbox.Errorf(sandbox.CodeInvalidArgument, "no image")
	}
	return nil
}

func (fakeImages) Pull(_ context.Context, image string, w io.Writer) error {
	if strings.HasPrefix(image, "none/") {
		return sandbox.Errorf(sandbox.CodeRegistry, "there is no such image")
	}
	_, err := io.WriteString(w, image)
	return err
}

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// staged lists what lies in the directory of archives.
func (w *world) staged() []string {
	w.t.Helper()
	list, err := filepath.Glob(filepath.Join(w.dir, "import-*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	large := strings.Repeat("0123456789abcdef", 1<<14) // more than one message
	for name, spec := range map[string]control.ImportSpec{
		large:          {Name: "up", Archive: strings.NewReader(large)},
		"hub/alpine:3": {Name: "team/alpine:3", Image: "hub/alpine:3"},
	} {
		acc, err := w.c.ImportTemplate(t.Context(), w.call(), spec)
		if err != nil {
			t.Fatal(err)
		}
		op := w.ended(acc.Operation.ID)
		if op.State != operation.Succeeded || op.Kind != "import" || op.Resource != (operation.Resource{Type: "template", ID: digestOf(name)}) {
			t.Fatalf("operation: %+v", op)
		}
		tpl, err := w.c.GetTemplate(t.Context(), spec.Name)
		if err != nil || tpl.Digest != digestOf(name) {
			t.Errorf("template %+v, %v", tpl, err)
		}
	}
	if left := w.staged(); len(left) != 0 {
		t.Errorf("archives left: %v", left)
	}
}

func TestImportRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		spec control.ImportSpec
		want sandbox.Code
	}{
		"bad name": {control.ImportSpec{Name: "Bad", Image: "x"}, sandbox.CodeInvalidArgument},
		"a digest": {control.ImportSpec{Name: "sha256:abc", Image: "x"}, sandbox.CodeInvalidArgument},
		"no image": {control.ImportSpec{Name: "x"}, sandbox.CodeInvalidArgument},
		"cut body": {control.ImportSpec{Name: "x", Archive: io.MultiReader(strings.NewReader("x"), errReader{})}, sandbox.CodeMalformedBody},
	} {
		if _, err := w.c.ImportTemplate(t.Context(), w.call(), c.spec); sandbox.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	acc, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: "x", Image: "none/x"})
	if err != nil {
		t.Fatal(err)
	}
	if op := w.ended(acc.Operation.ID); op.State != operation.Failed || op.Error.Code != sandbox.CodeRegistry || op.Resource.ID != "x:latest" {
		t.Errorf("operation: %+v", op)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

func TestImportIdempotency(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func(body string) (control.Accepted, error) {
		return w.c.ImportTemplate(t.Context(), w.keyed("k", "POST /v1/templates", "x"), control.ImportSpec{Name: "x", Archive: strings.NewReader(body)})
	}
	first, err := send("one")
	if err != nil {
		t.Fatal(err)
	}
	w.ended(first.Operation.ID)
	if again, err := send("one"); err != nil || !again.Replayed || again.Operation.ID != first.Operation.ID {
		t.Errorf("the same archive: %+v, %v", again, err)
	}
	if _, err := send("two"); sandbox.CodeOf(err) != sandbox.CodeIdempotencyConflict {
		t.Errorf("another archive: %v", err)
	}
}

// TestImportLimit: a few imports at once, each of which may have a large archive; more are told to come back.
func TestImportLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.node.setHook(g.at("ImportTemplate"))
	var all []control.Accepted
	for _, name := range []string{"a", "b", "c", "d"} {
		acc, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: name, Image: name})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, acc)
	}
	if _, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: "e", Image: "e"}); sandbox.CodeOf(err) != sandbox.CodeCapacity {
		t.Errorf("a fifth: %v", err)
	}
	close(g.open)
	for _, acc := range all {
		if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded {
			t.Errorf("%s: %v", op.State, op.Error)
		}
	}
	w.eventually("another is taken", func() bool {
		_, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: "e", Image: "e"})
		return err == nil
	})
}

// TestCrashDuringImport: the next control says that it was cut off, and nothing is left of it.
func TestCrashDuringImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.node.setHook(g.at("ImportTemplate"))
	acc, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: "x", Archive: strings.NewReader("x")})
	if err != nil {
		t.Fatal(err)
	}
	<-g.reached
	w.crash()
	close(g.open)
	if err := os.WriteFile(filepath.Join(w.dir, "import-left.tar"), nil, 0o600); err != nil { // as if killed a moment earlier
		t.Fatal(err)
	}
	w.startControl()
	if op := w.ended(acc.Operation.ID); op.State != operation.Failed || op.Error.Code != sandbox.CodeInterrupted {
		t.Errorf("operation: %+v", op)
	}
	if left := w.staged(); len(left) != 0 {
		t.Errorf("archives left: %v", left)
	}
}

// TestImportOutlivesNode: node is restarted while it imports; the archive is sent again.
func TestImportOutlivesNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := newGate()
	w.node.setHook(g.at("ImportTemplate"))
	acc, err := w.c.ImportTemplate(t.Context(), w.call(), control.ImportSpec{Name: "x", Archive: strings.NewReader("content")})
	if err != nil {
		t.Fatal(err)
	}
	<-g.reached
	w.node.setHook(nil)
	w.stopNode()
	close(g.open)
	w.startNode()
	if op := w.ended(acc.Operation.ID); op.State != operation.Succeeded || op.Resource.ID != digestOf("content") {
		t.Errorf("operation: %+v", op)
	}
}

func TestDeleteTemplate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	acc := w.accept(sandbox.Spec{Template: "mini"})
	w.ended(acc.Operation.ID)
	for _, ref := range []string{"mini", "mini:latest", miniDigest} {
		if err := w.c.DeleteTemplate(t.Context(), ref); sandbox.CodeOf(err) != sandbox.CodeTemplateInUse {
			t.Errorf("in use, by %s: %v", ref, err)
		}
	}
	if err := w.c.DeleteTemplate(t.Context(), "base:1"); err != nil {
		t.Fatal(err)
	}
	if tpl, err := w.c.GetTemplate(t.Context(), baseDigest); err != nil || !slices.Equal(tpl.Names, []string{"base:latest"}) {
		t.Errorf("after one of two names: %+v, %v", tpl, err)
	}
	if err := w.c.DeleteTemplate(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.GetTemplate(t.Context(), baseDigest); sandbox.CodeOf(err) != sandbox.CodeTemplateNotFound {
		t.Errorf("after the last name: %v", err)
	}
	if err := w.c.DeleteTemplate(t.Context(), "base"); sandbox.CodeOf(err) != sandbox.CodeTemplateNotFound {
		t.Errorf("again: %v", err)
	}
	w.deleted(acc.Sandbox.ID)
	if err := w.c.DeleteTemplate(t.Context(), "mini"); err != nil {
		t.Errorf("when it is not used any more: %v", err)
	}
}
