package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// cachedPool is the connections of the readers with their statements prepared once: parsing a query takes as long as
// running it. Safe for concurrent use.
type cachedPool struct {
	db *sql.DB

	mu    sync.RWMutex
	stmts map[string]*sql.Stmt
}

func newCachedPool(db *sql.DB) *cachedPool {
	return &cachedPool{db: db, stmts: map[string]*sql.Stmt{}}
}

// QueryContext does not end with ctx once it runs: these queries are short, and watching a context costs two goroutines
// for each.
func (p *cachedPool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	st, err := p.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(ctx, args...)
}

// QueryOnce ends with ctx.
func (p *cachedPool) QueryOnce(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return p.db.QueryContext(ctx, query, args...)
}

func (p *cachedPool) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	p.mu.RLock()
	st := p.stmts[query]
	p.mu.RUnlock()
	if st != nil {
		return st, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if st := p.stmts[query]; st != nil {
		return st, nil
	}
	st, err := p.db.PrepareContext(ctx, query)
	if err == nil {
		p.stmts[query] = st
	}
	return st, err
}

func (p *cachedPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := []error{p.db.Close()}
	for _, st := range p.stmts {
		errs = append(errs, st.Close())
	}
	clear(p.stmts)
	return errors.Join(errs...)
}
