package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/store"
)

// querier is what both the pool of readers and the writer's connection can do.
type querier interface {
	// QueryContext runs one of the few queries whose text is fixed; it is parsed once.
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// QueryOnce runs a query whose text was put together for this call.
	QueryOnce(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// once is a querier that keeps no statements.
type once struct{ querier }

func (o once) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return o.QueryOnce(ctx, query, args...)
}

// reader implements store.Reader on either.
type reader struct{ q querier }

// scanner is one row.
type scanner interface{ Scan(dest ...any) error }

// collect runs a query and scans every row.
func collect[T any](ctx context.Context, q querier, scan func(scanner) (T, error), query string, args ...any) (out []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		out = append(out, v)
	}
	return out, readError(rows.Err())
}

// one runs a query for a single row; none is ErrNotFound.
func one[T any](ctx context.Context, q querier, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	var none T
	rows, err := collect(ctx, q, scan, query, args...)
	if err != nil {
		return none, err
	}
	if len(rows) == 0 {
		return none, store.ErrNotFound
	}
	return rows[0], nil
}

// readError gives a read of a closed store its proper error.
func readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case err.Error() == "sql: database is closed": // database/sql has no exported error for it
		return store.ErrClosed
	}
	return fmt.Errorf("store: %w", err)
}

func scanInt(s scanner) (n int, err error)       { return n, s.Scan(&n) }
func scanString(s scanner) (v string, err error) { return v, s.Scan(&v) }

// nanos is a time as it is stored.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// stamp scans nanos into a time.
type stamp struct{ t *time.Time }

func (s stamp) Scan(v any) error {
	n, ok := v.(int64)
	if !ok {
		return fmt.Errorf("time column holds %T", v)
	}
	*s.t = time.Time{}
	if n != 0 {
		*s.t = time.Unix(0, n).UTC()
	}
	return nil
}

// document scans JSON into v.
type document struct{ v any }

func (d document) Scan(v any) error {
	s, ok := v.(string)
	if !ok {
		return fmt.Errorf("JSON column holds %T", v)
	}
	return json.Unmarshal([]byte(s), d.v)
}

// text is v as JSON; maps and lists of strings and numbers always marshal.
func text(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("store: %w", err)
	}
	return string(raw), nil
}

// selection builds the WHERE clause of a list.
type selection struct {
	conds []string
	args  []any
}

func (s *selection) where(cond string, args ...any) {
	s.conds = append(s.conds, cond)
	s.args = append(s.args, args...)
}

// in adds column IN (values); the values are never part of the text.
func in[T ~string](s *selection, column string, values []T) {
	args := make([]any, len(values))
	for i, v := range values {
		args[i] = string(v)
	}
	s.where(column+" IN (?"+strings.Repeat(",?", len(values)-1)+")", args...)
}

func (s *selection) String() string {
	if len(s.conds) == 0 {
		return ""
	}
	return " WHERE " + s.on()
}

// on is the condition alone.
func (s *selection) on() string { return strings.Join(s.conds, " AND ") }

// list is one table seen as a list ordered by created_at, id.
type list[T any] struct {
	table, columns string
	scan           func(scanner) (T, error)
	position       func(T) store.Position
}

// page runs the list with its selection.
func (l list[T]) page(ctx context.Context, q querier, sel selection, req store.PageRequest) (store.Page[T], error) {
	var page store.Page[T]
	q = once{q}
	req, err := req.Normalize()
	if err != nil {
		return page, err
	}
	if req.Count {
		total, err := one(ctx, q, scanInt, "SELECT count(*) FROM "+l.table+sel.String(), sel.args...)
		if err != nil {
			return page, err
		}
		page.Total = &total
	}
	after, ok, err := store.ParseCursor(req.Cursor)
	if err != nil {
		return page, err
	}
	compare, order := "<", " DESC"
	if req.Ascending {
		compare, order = ">", " ASC"
	}
	if ok {
		sel.where("(created_at, id) "+compare+" (?, ?)", nanos(after.CreatedAt), after.ID)
	}
	page.Items, err = collect(ctx, q, l.scan, "SELECT "+l.columns+" FROM "+l.table+sel.String()+
		" ORDER BY created_at"+order+", id"+order+" LIMIT ?", append(sel.args, req.Limit+1)...)
	if err != nil {
		return page, err
	}
	if len(page.Items) > req.Limit { // one more than asked was read, so there is a next page
		page.Items = page.Items[:req.Limit]
		page.NextCursor = l.position(page.Items[req.Limit-1]).Cursor()
	}
	return page, nil
}
