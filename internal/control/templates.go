package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// digestPrefix begins every reference that names exact content.
const digestPrefix = "sha256:"

// normalRef returns a template reference as records show it: name:tag, with tag latest when none was given, or the digest.
func normalRef(ref string) string {
	if strings.HasPrefix(ref, digestPrefix) || strings.Contains(ref[strings.LastIndexByte(ref, '/')+1:], ":") {
		return ref
	}
	return ref + ":latest"
}

// ListTemplates returns the templates that new sandboxes can be made from.
func (c *Control) ListTemplates(ctx context.Context) ([]sandbox.Template, error) {
	list, err := c.Store.Templates(ctx)
	return list, storeError(err)
}

// GetTemplate resolves name, name:tag or digest. What the record does not know, node is asked for once more.
func (c *Control) GetTemplate(ctx context.Context, ref string) (sandbox.Template, error) {
	t, ok, err := c.lookTemplate(ctx, ref)
	if err != nil || ok {
		return t, err
	}
	if err := c.syncTemplates(ctx); err != nil {
		return sandbox.Template{}, err
	}
	t, ok, err = c.lookTemplate(ctx, ref)
	if err == nil && !ok {
		err = c.noTemplate(ctx, ref)
	}
	return t, err
}

func (c *Control) lookTemplate(ctx context.Context, ref string) (sandbox.Template, bool, error) {
	ref = normalRef(ref)
	list, err := c.Store.Templates(ctx)
	if err != nil {
		return sandbox.Template{}, false, storeError(err)
	}
	for _, t := range list {
		if t.Digest == ref || slices.Contains(t.Names, ref) {
			return t, true, nil
		}
	}
	return sandbox.Template{}, false, nil
}

func (c *Control) noTemplate(ctx context.Context, ref string) error {
	e := &sandbox.Error{Code: sandbox.CodeTemplateNotFound, Message: "no template has this name or digest",
		Cause: fmt.Sprintf("%q", ref), Remedy: "there are none yet; run space setup",
		Fields: []sandbox.FieldError{{Field: "template", Message: "is not known"}}}
	list, err := c.Store.Templates(ctx)
	if err != nil {
		return storeError(err)
	}
	var names []string
	for _, t := range list {
		names = append(names, t.Names...)
	}
	if len(names) > 0 {
		e.Remedy = "use one of " + strings.Join(names, ", ")
	}
	return e
}

// syncTemplates makes the record's list that of node.
func (c *Control) syncTemplates(ctx context.Context) error {
	res, err := call(ctx, c.Limits.CallTimeout, c.Deps.Node.ListTemplates, &nodev1.ListTemplatesRequest{})
	if err != nil {
		return err
	}
	var list []sandbox.Template
	for _, t := range res.Templates {
		list = append(list, sandbox.Template{Digest: t.Digest, Names: t.Names, SizeBytes: int64(t.SizeBytes),
			MinDiskMiB: int(t.MinDiskMib), Env: t.Env, User: t.User, Workdir: t.Workdir, Entrypoint: t.Entrypoint,
			CreatedAt: t.CreatedAt.AsTime()})
	}
	return storeError(c.Store.Update(ctx, func(tx store.Tx) error { return tx.ReplaceTemplates(list) }))
}
