// Package sqlite keeps the record of control in one SQLite file: the store for one host.
//
// One goroutine writes. It runs the updates that are waiting one after another, each in a savepoint, and commits them
// together with synchronous=FULL, so that many creates at once share the cost of one write to the disk while each is
// still durable before it is answered. Readers have connections of their own and are never blocked (WAL).
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/space-sandbox/space/internal/store"
)

const (
	// maxBatch bounds how many updates share a commit, and so how long one may wait for the others.
	maxBatch = 64
	// readConns is how many reads may run at once.
	readConns = 4
	// busyTimeoutMS is for a backup or an operator's shell that holds the file's lock for a moment.
	busyTimeoutMS = 10000
	// checkpointPages (of 4 KiB) is how long the log becomes before it is copied into the file. A copy stands in the way of
	// the next commit and costs two syncs; a longer log has most pages several times, and they are copied once.
	checkpointPages = 4000
)

// Store implements store.Store. Make one with Open.
type Store struct {
	reader
	reads   *cachedPool
	writeDB *sql.DB
	queue   chan *update
	commits atomic.Int64

	mu       sync.Mutex // guards closing of queue against senders
	closed   bool
	senders  sync.WaitGroup
	finished chan struct{} // the writer has ended
	closeErr error
}

var _ store.Store = (*Store)(nil)

// update is one call of Update on its way through the writer.
type update struct {
	ctx  context.Context
	fn   func(store.Tx) error
	err  error
	done chan struct{}
}

// Open opens the store at path, making it (mode 0600) or bringing its schema up to date as needed. A file that is
// damaged or was written by a newer version is refused with a *sandbox.Error that says so, and is left as it is.
func Open(ctx context.Context, path string) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	writeDB, err := sql.Open("sqlite", dsn(path, ""))
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	writeDB.SetMaxOpenConns(1)
	if err := prepare(ctx, writeDB, path); err != nil {
		return nil, errors.Join(err, writeDB.Close())
	}
	readDB, err := sql.Open("sqlite", dsn(path, "&_pragma=query_only(1)"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: %w", err), writeDB.Close())
	}
	readDB.SetMaxOpenConns(readConns)
	readDB.SetMaxIdleConns(readConns)
	conn, err := writeDB.Conn(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("store: %w", err), readDB.Close(), writeDB.Close())
	}
	reads := newCachedPool(readDB)
	s := &Store{reader: reader{reads}, reads: reads, writeDB: writeDB, queue: make(chan *update, maxBatch),
		finished: make(chan struct{})}
	go s.write(conn)
	return s, nil
}

func dsn(path, more string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + fmt.Sprintf(
		"?_pragma=busy_timeout(%d)&_pragma=wal_autocheckpoint(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=trusted_schema(0)%s",
		busyTimeoutMS, checkpointPages, more)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, fn func(store.Tx) error) error {
	u, err := s.enqueue(ctx, fn)
	if err != nil {
		return err
	}
	<-u.done
	return u.err
}

func (s *Store) enqueue(ctx context.Context, fn func(store.Tx) error) (*update, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, store.ErrClosed
	}
	s.senders.Add(1)
	s.mu.Unlock()
	defer s.senders.Done()
	u := &update{ctx: ctx, fn: fn, done: make(chan struct{})}
	select {
	case s.queue <- u:
		return u, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Commits implements store.Store.
func (s *Store) Commits() int64 { return s.commits.Load() }

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		s.senders.Wait()
		close(s.queue)
	}
	<-s.finished
	return s.closeErr
}
