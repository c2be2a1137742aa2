package sqlite

import (
	"context"
	"slices"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

const templateColumns = "digest, names, size_bytes, min_disk_mib, env, user, workdir, entrypoint, created_at"

func scanTemplate(row scanner) (t sandbox.Template, err error) {
	err = row.Scan(&t.Digest, document{&t.Names}, &t.SizeBytes, &t.MinDiskMiB, document{&t.Env}, &t.User, &t.Workdir,
		document{&t.Entrypoint}, stamp{&t.CreatedAt})
	return t, err
}

// Templates implements store.Reader.
func (r reader) Templates(ctx context.Context) ([]sandbox.Template, error) {
	list, err := collect(ctx, r.q, scanTemplate, "SELECT "+templateColumns+" FROM templates WHERE listed = 1 ORDER BY digest")
	slices.SortStableFunc(list, func(a, b sandbox.Template) int { return strings.Compare(firstName(a), firstName(b)) })
	return list, err
}

func firstName(t sandbox.Template) string {
	if len(t.Names) == 0 {
		return ""
	}
	return t.Names[0]
}

// Template implements store.Reader.
func (r reader) Template(ctx context.Context, digest string) (sandbox.Template, error) {
	return one(ctx, r.q, scanTemplate, "SELECT "+templateColumns+" FROM templates WHERE digest = ?", digest)
}

// ReplaceTemplates implements store.Tx.
func (t *tx) ReplaceTemplates(list []sandbox.Template) error {
	if err := t.exec(nil, "UPDATE templates SET listed = 0, names = '[]' WHERE listed = 1"); err != nil {
		return err
	}
	for _, tpl := range list {
		if err := t.putTemplate(tpl); err != nil {
			return err
		}
	}
	return t.exec(nil, `DELETE FROM templates WHERE listed = 0
		AND digest NOT IN (SELECT template_digest FROM sandboxes WHERE state <> 'deleted')`)
}

func (t *tx) putTemplate(tpl sandbox.Template) error {
	names, err := text(tpl.Names)
	if err != nil {
		return err
	}
	env, err := text(tpl.Env)
	if err != nil {
		return err
	}
	entrypoint, err := text(tpl.Entrypoint)
	if err != nil {
		return err
	}
	return t.exec(nil, "INSERT OR REPLACE INTO templates ("+templateColumns+", listed) VALUES (?,?,?,?,?,?,?,?,?,1)",
		tpl.Digest, names, tpl.SizeBytes, tpl.MinDiskMiB, env, tpl.User, tpl.Workdir, entrypoint, nanos(tpl.CreatedAt))
}
