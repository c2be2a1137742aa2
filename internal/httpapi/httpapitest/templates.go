package httpapitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"

	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Images that a Fake's imports treat in special ways.
const (
	ImageBroken = "broken.test/image" // its import fails
	ImageSlow   = "slow.test/image"   // its import runs until Finish
)

// ImportTemplate makes a record of a template whose digest is that of the archive or of the image's name.
func (f *Fake) ImportTemplate(_ context.Context, call control.Call, spec control.ImportSpec) (control.Accepted, error) {
	name, err := sandbox.ParseTemplateName(spec.Name)
	if err != nil {
		return control.Accepted{}, err
	}
	content := []byte(spec.Image)
	if spec.Archive != nil {
		if content, err = io.ReadAll(spec.Archive); err != nil {
			return control.Accepted{}, &sandbox.Error{Code: sandbox.CodeMalformedBody, Message: "the body could not be read", Err: err}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, err := f.replay(call); err != nil || id != "" {
		return f.acceptedBefore(id), err
	}
	now := f.tick()
	op := &operation.Operation{ID: sandbox.NewOperationID(), Kind: "import", Resource: operation.Resource{Type: "template", ID: name},
		State: operation.Running, Attempt: 1, CreatedAt: now, StartedAt: now, Steps: []operation.Step{{Name: "import", State: operation.Running, StartedAt: now}}}
	f.operations[op.ID] = op
	f.order = append(f.order, op.ID)
	f.remember(call, string(op.ID))
	acc := control.Accepted{Operation: *op}
	switch spec.Image {
	case ImageSlow:
	case ImageBroken:
		f.end(op, &sandbox.Error{Code: sandbox.CodeImageInvalid, Message: "the image was refused", Cause: "it is broken", Remedy: "use another one"})
	default:
		sum := sha256.Sum256(content)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		f.imported = append(f.imported, sandbox.Template{Digest: digest, Names: []string{name}, SizeBytes: 1 << 20, MinDiskMiB: 64, CreatedAt: now})
		op.Resource.ID = digest
		f.end(op, nil)
	}
	return acc, nil
}

// DeleteTemplate removes imported templates; the others are in use.
func (f *Fake) DeleteTemplate(ctx context.Context, ref string) error {
	t, err := f.GetTemplate(ctx, ref)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.imported, func(x sandbox.Template) bool { return x.Digest == t.Digest })
	if i < 0 {
		return &sandbox.Error{Code: sandbox.CodeTemplateInUse, Message: "a live sandbox was made from this template", Cause: "sandbox x", Remedy: "delete it"}
	}
	f.imported = slices.Delete(f.imported, i, i+1)
	return nil
}
