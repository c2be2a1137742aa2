package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/space-sandbox/space/internal/store"
)

// write is the writer goroutine; it alone uses conn.
func (s *Store) write(conn *sql.Conn) {
	defer close(s.finished)
	q := &cachedConn{conn: conn, stmts: map[string]*sql.Stmt{}}
	for u := range s.queue {
		batch := append([]*update{u}, s.waiting(maxBatch-1)...)
		if err := s.commit(q, batch); err != nil {
			for _, u := range batch {
				u.err = err
			}
		}
		for _, u := range batch {
			close(u.done)
		}
	}
	s.closeErr = errors.Join(q.close(), conn.Close(), s.reads.close(), s.writeDB.Close())
}

// waiting takes up to n updates that are in the queue already.
func (s *Store) waiting(n int) []*update {
	var out []*update
	for len(out) < n {
		select {
		case u, ok := <-s.queue:
			if !ok {
				return out
			}
			out = append(out, u)
		default:
			return out
		}
	}
	return out
}

// commit runs a batch in one transaction. An error of one update undoes that one; an error of commit itself undoes all.
// Nothing here is canceled by the context of a caller: the batch belongs to several.
func (s *Store) commit(q *cachedConn, batch []*update) (err error) {
	ctx := context.Background()
	if _, err := q.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("store: begin: %w", err)
	}
	defer func() {
		if err != nil {
			_, rerr := q.ExecContext(ctx, "ROLLBACK")
			err = errors.Join(err, rerr)
		}
	}()
	before, err := q.changes(ctx)
	if err != nil {
		return err
	}
	for _, u := range batch {
		if err := runOne(ctx, q, u); err != nil {
			return err
		}
	}
	after, err := q.changes(ctx)
	if err != nil {
		return err
	}
	if _, err := q.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("store: commit: %w", err)
	}
	if after != before {
		s.commits.Add(1)
	}
	return nil
}

// runOne runs one update in a savepoint; it sets u.err and fails only when the transaction as a whole is unusable.
func runOne(ctx context.Context, q *cachedConn, u *update) error {
	if u.err = u.ctx.Err(); u.err != nil {
		return nil
	}
	if _, err := q.ExecContext(ctx, "SAVEPOINT one"); err != nil {
		return fmt.Errorf("store: savepoint: %w", err)
	}
	u.err = u.fn(&tx{reader: reader{q}, q: q})
	if u.err != nil {
		if _, err := q.ExecContext(ctx, "ROLLBACK TO one"); err != nil {
			return fmt.Errorf("store: roll back: %w", err)
		}
	}
	if _, err := q.ExecContext(ctx, "RELEASE one"); err != nil {
		return fmt.Errorf("store: release: %w", err)
	}
	return nil
}

// cachedConn is the writer's connection with its statements prepared once.
type cachedConn struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

func (c *cachedConn) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := c.stmts[query]; ok {
		return st, nil
	}
	st, err := c.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	c.stmts[query] = st
	return st, nil
}

func (c *cachedConn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	st, err := c.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(ctx, args...)
}

// QueryContext does not end with ctx: interrupting a statement could undo the whole batch, which belongs to others too.
func (c *cachedConn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx = context.WithoutCancel(ctx)
	st, err := c.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(ctx, args...)
}

// QueryOnce is QueryContext without a kept statement.
func (c *cachedConn) QueryOnce(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return c.conn.QueryContext(context.WithoutCancel(ctx), query, args...)
}

func (c *cachedConn) changes(ctx context.Context) (n int64, err error) {
	rows, err := c.QueryContext(ctx, "SELECT total_changes()")
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&n)
	}
	return n, errors.Join(err, rows.Err())
}

func (c *cachedConn) close() error {
	var errs []error
	for _, st := range c.stmts {
		errs = append(errs, st.Close())
	}
	clear(c.stmts)
	return errors.Join(errs...)
}

// tx implements store.Tx on the writer's connection, inside the savepoint of one update.
type tx struct {
	reader
	q *cachedConn
}

var _ store.Tx = (*tx)(nil)

// exec runs a statement that must change a row; none is missing.
func (t *tx) exec(missing error, query string, args ...any) error {
	res, err := t.q.ExecContext(context.Background(), query, args...)
	if err != nil {
		return constraint(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if n == 0 && missing != nil {
		return missing
	}
	return nil
}
