package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// eventBounds is one row: the oldest event that is kept, or the number of the next one, and the newest number given.
const eventBounds = `SELECT coalesce((SELECT min(seq) FROM events), n + 1) AS oldest, n AS newest
	FROM (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0) AS n)`

// Events implements store.Reader. One statement sees one version of the log; a row without an event has the bounds.
func (r reader) Events(ctx context.Context, after int64, f store.EventFilter, limit int) (store.EventPage, error) {
	if limit < 1 || limit > store.MaxEvents {
		return store.EventPage{}, fmt.Errorf("limit %d is not between 1 and %d", limit, store.MaxEvents)
	}
	var sel selection
	sel.where("e.seq > max(?, b.oldest - 1)", after)
	sel.where("e.seq <= max(?, b.oldest - 1) + ?", after, store.MaxEventScan)
	if f.SandboxID != "" {
		sel.where("e.sandbox_id = ?", f.SandboxID)
	}
	if len(f.Types) > 0 {
		in(&sel, "e.type", f.Types)
	}
	var page store.EventPage
	events, err := collect(ctx, r.q, func(row scanner) (store.Event, error) { return scanEvent(row, &page) },
		"SELECT b.oldest, b.newest, e.seq, e.time, e.type, e.sandbox_id, e.operation_id, e.object FROM ("+eventBounds+
			") AS b LEFT JOIN events AS e ON "+sel.on()+" ORDER BY e.seq LIMIT ?", append(sel.args, limit)...)
	if err != nil {
		return store.EventPage{}, err
	}
	if len(events) == 1 && events[0].Seq == 0 {
		events = nil
	}
	page.Events = events
	page.Next = max(after, min(page.Newest, max(after, page.Oldest-1)+store.MaxEventScan))
	if len(events) == limit {
		page.Next = events[limit-1].Seq
	}
	return page, nil
}

func scanEvent(row scanner, page *store.EventPage) (e store.Event, err error) {
	var seq, at sql.Null[int64]
	var kind, box, op, object sql.Null[string]
	err = row.Scan(&page.Oldest, &page.Newest, &seq, &at, &kind, &box, &op, &object)
	e = store.Event{Seq: seq.V, Time: fromNanos(at.V), Type: store.EventType(kind.V), SandboxID: sandbox.ID(box.V),
		OperationID: sandbox.OperationID(op.V), Object: []byte(object.V)}
	return e, err
}

// AppendEvent implements store.Tx.
func (t *tx) AppendEvent(e store.Event) error {
	return t.exec(nil, "INSERT INTO events (time, type, sandbox_id, operation_id, object) VALUES (?,?,?,?,?)",
		nanos(e.Time), e.Type, e.SandboxID, e.OperationID, string(e.Object))
}

// PurgeEvents implements store.Tx.
func (t *tx) PurgeEvents(before time.Time, keep, limit int64) (int64, error) {
	ctx := context.Background()
	type bounds struct{ oldest, newest int64 }
	b, err := one(ctx, t.q, func(row scanner) (b bounds, err error) { return b, row.Scan(&b.oldest, &b.newest) }, eventBounds)
	if err != nil {
		return 0, err
	}
	end := min(b.oldest+limit, b.newest+1) // the first that stays
	young, err := one(ctx, t.q, scanInt, "SELECT seq FROM events WHERE seq >= ? AND seq < ? AND time >= ? ORDER BY seq LIMIT 1",
		b.newest-keep+1, end, nanos(before))
	switch {
	case err == nil:
		end = int64(young)
	case !errors.Is(err, store.ErrNotFound):
		return 0, err
	}
	if end <= b.oldest {
		return 0, nil
	}
	return end - b.oldest, t.exec(nil, "DELETE FROM events WHERE seq < ?", end)
}
