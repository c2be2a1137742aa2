package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// prepare checks the file and brings its schema up to date.
func prepare(ctx context.Context, db *sql.DB, path string) error {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return openError(path, err)
	}
	if verdict != "ok" {
		return damaged(path, errors.New(verdict))
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("store: migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files)
	if err != nil {
		return openError(path, err)
	}
	sources := provider.ListSources()
	known := sources[len(sources)-1].Version
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return openError(path, err)
	}
	if have > known {
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the store was written by a newer version of SPACE",
			Cause:  fmt.Sprintf("%s has schema %d, this version knows up to %d", path, have, known),
			Remedy: "run the newer version, or restore a backup made before the upgrade"}
	}
	if _, err := provider.Up(ctx); err != nil {
		return openError(path, err)
	}
	return nil
}

func openError(path string, err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff { // the primary code of an extended one
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return damaged(path, err)
		}
	}
	return fmt.Errorf("store %s: %w", path, err)
}

func damaged(path string, err error) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the store is damaged",
		Cause:  path + ": " + err.Error(),
		Remedy: "restore a backup, or move the file and its -wal and -shm files away to start with an empty record", Err: err}
}

// constraint turns the violation of a unique index into the contract's error.
func constraint(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return fmt.Errorf("store: %w", err)
	}
	switch {
	case e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE && strings.Contains(e.Error(), "sandboxes.name"):
		return store.ErrNameTaken
	case e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE, e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return store.ErrExists
	}
	return fmt.Errorf("store: %w", err)
}
