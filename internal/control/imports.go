package control

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/telemetry"
)

const (
	kindImport       = "import"
	resourceTemplate = "template"
)

// Images fetches images from registries.
type Images interface {
	// Check refuses what is not the name of an image.
	Check(image string) error
	// Pull writes an image as an archive of the OCI layout.
	Pull(ctx context.Context, image string, w io.Writer) error
}

// ImportSpec is what a template is to be made from: one of Image and Archive.
type ImportSpec struct {
	Name    string // with or without a tag
	Image   string // in a registry
	Archive io.Reader
}

const (
	// maxArchive bounds an archive on its way to node.
	maxArchive = 8<<30 + 64<<20
	// maxImports is how many imports may be queued or under way, each with an archive of its own.
	maxImports = 4
	// chunk is how an archive travels to node.
	chunk = 32 << 10

	stagePattern = "import-*.tar"
)

// ImportTemplate accepts the import of an image. An archive has been read to its end when it returns; an image in a
// registry is fetched by the operation. An import does not outlive control: after a restart it ends interrupted.
func (c *Control) ImportTemplate(ctx context.Context, call Call, spec ImportSpec) (Accepted, error) {
	name, err := sandbox.ParseTemplateName(spec.Name)
	if err != nil {
		return Accepted{}, err
	}
	if c.Images == nil || c.ImportDir == "" {
		return Accepted{}, sandbox.Errorf(sandbox.CodeHostSetup, "this installation imports no images")
	}
	if spec.Archive == nil {
		if err := c.Images.Check(spec.Image); err != nil {
			return Accepted{}, err
		}
		if acc, found, err := c.replayed(ctx, call); found || err != nil {
			return acc, err
		}
	}
	if !c.imports.TryAcquire(1) {
		return Accepted{}, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "too many imports are under way",
			Cause: fmt.Sprintf("at most %d are", maxImports), Remedy: "wait for one of them to end"}
	}
	im := &importing{name: name, image: spec.Image, release: func() { c.imports.Release(1) }}
	acc, err := c.acceptImport(ctx, call, spec, im)
	if err != nil || acc.Replayed {
		im.close()
	}
	return acc, err
}

// importing is an import on its way.
type importing struct {
	name, image string
	file        *os.File // the archive; it has no name any more
	release     func()
}

func (im *importing) close() {
	if im.file != nil {
		im.file.Close()
	}
	im.release()
}

func (c *Control) acceptImport(ctx context.Context, call Call, spec ImportSpec, im *importing) (Accepted, error) {
	if err := c.stage(im); err != nil {
		return Accepted{}, err
	}
	if spec.Archive != nil {
		sum := sha256.New()
		if err := fill(im.file, io.TeeReader(spec.Archive, sum)); err != nil {
			return Accepted{}, err
		}
		if call.Idempotency != nil { // the archive belongs to what the request is
			id := *call.Idempotency
			id.Fingerprint = sha256.Sum256(append(id.Fingerprint[:], sum.Sum(nil)...))
			call.Idempotency = &id
		}
		if acc, found, err := c.replayed(ctx, call); found || err != nil {
			return acc, err
		}
	}
	op, err := c.engine.Submit(ctx, kindImport, operation.Resource{Type: resourceTemplate, ID: im.name}, "", func(ctx context.Context, op *operation.Operation) error {
		return c.Store.Update(ctx, func(tx store.Tx) error {
			if err := c.remember(ctx, tx, call, string(op.ID)); err != nil {
				return err
			}
			return tx.InsertOperation(*op)
		})
	})
	if errors.Is(err, errReplay) {
		acc, _, err := c.replayed(ctx, call)
		return acc, err
	}
	if err != nil {
		return Accepted{}, storeError(err)
	}
	c.traces.Store(op.ID, telemetry.TraceOf(ctx))
	c.boxes.do(resourceTemplate+" "+im.name, func() {
		defer im.close()
		c.run(c.importTask(op.ID, im))
	})
	return Accepted{Operation: op}, nil
}

// stage makes the file for an archive. It loses its name at once, so that nothing of it outlives this process.
func (c *Control) stage(im *importing) (err error) {
	if im.file, err = os.CreateTemp(c.ImportDir, stagePattern); err != nil {
		return stageError(err)
	}
	return stageError(os.Remove(im.file.Name()))
}

// sweepStages removes what a process that was killed between making a file and taking its name has left.
func (c *Control) sweepStages() error {
	if c.ImportDir == "" {
		return nil
	}
	left, err := filepath.Glob(filepath.Join(c.ImportDir, stagePattern))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

func stageError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the host's disk is full", Cause: err.Error(),
			Remedy: "free some space where the data directory is", Err: err}
	}
	return err
}

// fill reads an uploaded archive.
func fill(w io.Writer, r io.Reader) error {
	n, err := io.Copy(w, io.LimitReader(r, maxArchive+1))
	if _, ours := errors.AsType[*os.PathError](err); ours {
		return stageError(err)
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeMalformedBody, Message: "the body could not be read", Cause: "the connection ended before the body did, or stood still",
			Remedy: "send the request again", Err: err}
	}
	if n > maxArchive {
		return &sandbox.Error{Code: sandbox.CodeBodyTooLarge, Message: "the archive is too large", Cause: fmt.Sprintf("at most %d bytes are taken", int64(maxArchive))}
	}
	return nil
}

// importTask fetches the image if need be and has node make a template of it.
func (c *Control) importTask(id sandbox.OperationID, im *importing) operation.Task {
	return operation.Task{ID: id, Deadline: c.Limits.ImportDeadline, Body: func(ctx context.Context, r *operation.Run) operation.Outcome {
		if im.image != "" {
			if err := r.Step(ctx, "fetch", func(ctx context.Context) error { return stageError(c.Images.Pull(ctx, im.image, im.file)) }); err != nil {
				return operation.Outcome{Err: err}
			}
		}
		var made *nodev1.Template
		err := r.Step(ctx, "import", func(ctx context.Context) error {
			return c.insist(ctx, c.node, "ImportTemplate", transient, func(ctx context.Context) (err error) {
				made, err = c.sendArchive(ctx, r, im)
				return err
			})
		})
		if err == nil {
			err = r.Step(ctx, "register", func(ctx context.Context) error {
				return c.insist(ctx, c.node, "ListTemplates", transient, c.syncTemplates)
			})
		}
		if err != nil {
			return operation.Outcome{Err: err}
		}
		return operation.Outcome{Commit: func(ctx context.Context, op *operation.Operation) error {
			op.Resource.ID = made.GetDigest() // the name may stand for something else later
			return c.Store.Update(ctx, func(tx store.Tx) error { return tx.UpdateOperation(*op) })
		}}
	}}
}

// sendArchive streams the staged archive to node.
func (c *Control) sendArchive(ctx context.Context, r *operation.Run, im *importing) (*nodev1.Template, error) {
	began := c.Now().UTC()
	ctx, cancel := context.WithCancel(ctx) // an attempt that ends early leaves no stream behind
	defer cancel()
	stream := c.Deps.Node.ImportTemplate(ctx)
	err := stream.Send(&nodev1.ImportTemplateRequest{Part: &nodev1.ImportTemplateRequest_Start{Start: &nodev1.ImportStart{Name: im.name}}})
	if err == nil {
		err = sendAll(stream, im.file)
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: node has answered already, and the answer says why
		return nil, streamError(ctx, err)
	}
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, streamError(ctx, err)
	}
	for _, s := range res.Msg.Stages[:min(len(res.Msg.Stages), maxStages)] {
		began = recordStage(r, "import/"+cut(s.Name, maxStageName), began, s.Ms)
	}
	return res.Msg.Template, nil
}

// streamError tells an answer that was cut off, because node is ending, from node's own refusal.
func streamError(ctx context.Context, err error) error {
	mapped := rpc.FromConnect(err)
	if ctx.Err() == nil && (sandbox.CodeOf(mapped) == sandbox.CodeCanceled || errors.Is(err, io.ErrUnexpectedEOF)) {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "a part of SPACE is restarting", Remedy: "try again in a moment", Err: mapped}
	}
	return mapped
}

func sendAll(stream *connect.ClientStreamForClient[nodev1.ImportTemplateRequest, nodev1.ImportTemplateResponse], f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	content := io.NewSectionReader(f, 0, info.Size()) // an attempt begins at the start
	for {
		buf := make([]byte, chunk)
		n, err := io.ReadFull(content, buf)
		if n > 0 {
			if err := stream.Send(&nodev1.ImportTemplateRequest{Part: &nodev1.ImportTemplateRequest_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// DeleteTemplate takes a name from a template. When that was its last one, or ref is a digest, the content goes too,
// which is refused while a live sandbox was made from it.
func (c *Control) DeleteTemplate(ctx context.Context, ref string) error {
	if err := c.node.check(); err != nil {
		return err
	}
	t, err := c.GetTemplate(ctx, ref)
	if err != nil {
		return err
	}
	req := &nodev1.DeleteTemplateRequest{Digest: t.Digest}
	if !strings.HasPrefix(ref, digestPrefix) && len(t.Names) > 1 {
		req.Name = normalRef(ref)
	}
	if req.Name == "" {
		if err := c.unused(ctx, t.Digest); err != nil {
			return err
		}
	}
	if _, err := call(ctx, c.Limits.DeleteTimeout, c.Deps.Node.DeleteTemplate, req); err != nil {
		return err
	}
	return c.syncTemplates(ctx)
}

func (c *Control) unused(ctx context.Context, digest string) error {
	live, err := c.Store.LiveSandboxes(ctx)
	if err != nil {
		return storeError(err)
	}
	i := slices.IndexFunc(live, func(b sandbox.Sandbox) bool { return b.Template.Digest == digest })
	if i < 0 {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeTemplateInUse, Message: "a live sandbox was made from this template",
		Cause: "sandbox " + string(live[i].ID), Remedy: "delete the sandboxes made from it first"}
}
