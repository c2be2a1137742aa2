package sqlite

import (
	"context"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

const commandColumns = `id, sandbox_id, process_id, argv, env, cwd, user, stdin, timeout_seconds, tag, state, reason, pid,
	exit_code, signal, error_code, error_message, created_at, started_at, ended_at, stdout_bytes, stderr_bytes,
	stdin_bytes, truncated_bytes, epoch, pty_cols, pty_rows, pty_bytes, record, revision`

func scanCommand(row scanner) (c sandbox.Command, err error) {
	var size sandbox.TerminalSize
	err = row.Scan(&c.ID, &c.SandboxID, &c.ProcessID, document{&c.Spec.Argv}, document{&c.Spec.Env}, &c.Spec.Cwd,
		&c.Spec.User, &c.Spec.Stdin, &c.Spec.TimeoutSeconds, &c.Spec.Tag, &c.State, &c.Reason, &c.PID, &c.ExitCode,
		&c.Signal, &c.ErrorCode, &c.ErrorMessage, stamp{&c.CreatedAt}, stamp{&c.StartedAt}, stamp{&c.EndedAt},
		&c.StdoutBytes, &c.StderrBytes, &c.StdinBytes, &c.Truncated, &c.Epoch, &size.Cols, &size.Rows, &c.PTYBytes, &c.Spec.Record, &c.Revision)
	if size.Cols != 0 {
		c.Spec.PTY = &size
	}
	return c, err
}

// commandValues are the columns but id and revision.
func commandValues(c sandbox.Command) ([]any, error) {
	argv, err := text(c.Spec.Argv)
	if err != nil {
		return nil, err
	}
	env, err := text(c.Spec.Env)
	if err != nil {
		return nil, err
	}
	var size sandbox.TerminalSize
	if c.Spec.PTY != nil {
		size = *c.Spec.PTY
	}
	// Sizes are bounded by what a machine can write, so an int64 holds them.
	return []any{c.SandboxID, c.ProcessID, argv, env, c.Spec.Cwd, c.Spec.User, c.Spec.Stdin, c.Spec.TimeoutSeconds,
		c.Spec.Tag, c.State, c.Reason, c.PID, c.ExitCode, c.Signal, c.ErrorCode, c.ErrorMessage, nanos(c.CreatedAt),
		nanos(c.StartedAt), nanos(c.EndedAt), int64(c.StdoutBytes), int64(c.StderrBytes), int64(c.StdinBytes),
		int64(c.Truncated), c.Epoch, size.Cols, size.Rows, int64(c.PTYBytes),
		c.Spec.Record}, nil
}

var commandList = list[sandbox.Command]{table: "commands", columns: commandColumns, scan: scanCommand,
	position: func(c sandbox.Command) store.Position {
		return store.Position{CreatedAt: c.CreatedAt, ID: string(c.ID)}
	}}

// Command implements store.Reader.
func (r reader) Command(ctx context.Context, id sandbox.CommandID) (sandbox.Command, error) {
	return one(ctx, r.q, scanCommand, "SELECT "+commandColumns+" FROM commands WHERE id = ?", id)
}

// CommandByProcess implements store.Reader.
func (r reader) CommandByProcess(ctx context.Context, box sandbox.ID, process sandbox.ProcessID) (sandbox.Command, error) {
	return one(ctx, r.q, scanCommand, "SELECT "+commandColumns+" FROM commands WHERE sandbox_id = ? AND process_id = ?",
		box, process)
}

// Commands implements store.Reader.
func (r reader) Commands(ctx context.Context, box sandbox.ID, f store.CommandFilter) (store.Page[sandbox.Command], error) {
	var sel selection
	sel.where("sandbox_id = ?", box)
	if f.Tag != "" {
		sel.where("tag = ?", f.Tag)
	}
	if f.PID != 0 {
		sel.where("pid = ?", f.PID)
	}
	if len(f.States) > 0 {
		in(&sel, "state", f.States)
	}
	if !f.CreatedAfter.IsZero() {
		sel.where("created_at > ?", nanos(f.CreatedAfter))
	}
	return commandList.page(ctx, r.q, sel, f.PageRequest)
}

// OpenCommands implements store.Reader.
func (r reader) OpenCommands(ctx context.Context, box sandbox.ID) ([]sandbox.Command, error) {
	return collect(ctx, r.q, scanCommand, "SELECT "+commandColumns+
		" FROM commands WHERE sandbox_id = ? AND state IN ('created', 'running') ORDER BY created_at, id", box)
}

// LastCommands implements store.Reader.
func (r reader) LastCommands(ctx context.Context, box sandbox.ID, n int) ([]sandbox.Command, error) {
	return collect(ctx, r.q, scanCommand, "SELECT "+commandColumns+
		" FROM (SELECT * FROM commands WHERE sandbox_id = ? ORDER BY created_at DESC, id DESC LIMIT ?) UNION SELECT "+commandColumns+
		" FROM commands WHERE sandbox_id = ? AND state IN ('created', 'running') ORDER BY created_at, id", box, n, box)
}

// InsertCommand implements store.Tx.
func (t *tx) InsertCommand(c sandbox.Command) error {
	values, err := commandValues(c)
	if err != nil {
		return err
	}
	return t.exec(nil, "INSERT INTO commands ("+commandColumns+
		") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,1)", append([]any{c.ID}, values...)...)
}

// UpdateCommand implements store.Tx.
func (t *tx) UpdateCommand(c sandbox.Command) (sandbox.Command, error) {
	values, err := commandValues(c)
	if err != nil {
		return c, err
	}
	err = t.exec(store.ErrConflict, `UPDATE commands SET sandbox_id=?, process_id=?, argv=?, env=?, cwd=?, user=?, stdin=?,
		timeout_seconds=?, tag=?, state=?, reason=?, pid=?, exit_code=?, signal=?, error_code=?, error_message=?,
		created_at=?, started_at=?, ended_at=?, stdout_bytes=?, stderr_bytes=?, stdin_bytes=?, truncated_bytes=?, epoch=?,
		pty_cols=?, pty_rows=?, pty_bytes=?, record=?, revision=revision+1 WHERE id=? AND revision=?`, append(values, c.ID, c.Revision)...)
	if err != nil {
		return c, err
	}
	c = c.Clone()
	c.Revision++
	return c, nil
}

// DeleteCommand implements store.Tx.
func (t *tx) DeleteCommand(id sandbox.CommandID) error {
	return t.exec(nil, "DELETE FROM commands WHERE id = ?", id)
}

// DeleteCommands implements store.Tx.
func (t *tx) DeleteCommands(box sandbox.ID) error {
	return t.exec(nil, "DELETE FROM commands WHERE sandbox_id = ?", box)
}
