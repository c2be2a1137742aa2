package store

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// The bounds of PageRequest.Limit.
const (
	DefaultLimit = 50
	MaxLimit     = 100
)

// PageRequest bounds a list. The zero value asks for the first DefaultLimit rows, newest first.
type PageRequest struct {
	Limit     int    // 1 to MaxLimit; 0 is DefaultLimit
	Cursor    string // opaque; from the page before
	Ascending bool   // oldest first
	Count     bool   // ask for Page.Total
}

// Page is one page of a list.
type Page[T any] struct {
	Items      []T
	NextCursor string // "" on the last page
	Total      *int   // all rows that match, on every page; only when asked
}

// SandboxFilter selects sandboxes; deleted ones only when States names them.
type SandboxFilter struct {
	PageRequest
	ID           sandbox.ID // only this one; "": all
	States       []sandbox.State
	CreatedAfter time.Time
	Template     string            // reference or digest, as the record shows it
	Metadata     map[string]string // all of these
}

// OperationFilter selects operations.
type OperationFilter struct {
	PageRequest
	States       []operation.State
	ResourceID   string // of this sandbox, template …
	CreatedAfter time.Time
}

// CommandFilter selects command sessions.
type CommandFilter struct {
	PageRequest
	Tag          string
	PID          int
	States       []sandbox.CommandState
	CreatedAfter time.Time
}

// Position is a place in a list: rows are ordered by when they were made, then by id. Drivers use it to make cursors.
type Position struct {
	CreatedAt time.Time
	ID        string
}

type wirePosition struct {
	T int64  `json:"t"`
	I string `json:"i"`
}

// maxCursor bounds what ParseCursor looks at.
const maxCursor = 256

// Cursor returns p as opaque text.
func (p Position) Cursor() string {
	raw, err := json.Marshal(wirePosition{T: p.CreatedAt.UnixNano(), I: p.ID})
	if err != nil {
		return "" // an integer and a string always marshal
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ParseCursor reads a cursor; ok is false for the empty one (start of the list).
func ParseCursor(s string) (p Position, ok bool, err error) {
	if s == "" {
		return Position{}, false, nil
	}
	if len(s) > maxCursor {
		return Position{}, false, ErrBadCursor
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return Position{}, false, ErrBadCursor
	}
	var w wirePosition
	if err := json.Unmarshal(raw, &w); err != nil || w.I == "" {
		return Position{}, false, ErrBadCursor
	}
	return Position{CreatedAt: time.Unix(0, w.T).UTC(), ID: w.I}, true, nil
}

// Normalize returns r with its default limit, or an error for a limit or cursor that is not allowed.
func (r PageRequest) Normalize() (PageRequest, error) {
	if r.Limit == 0 {
		r.Limit = DefaultLimit
	}
	if r.Limit < 1 || r.Limit > MaxLimit {
		return r, fmt.Errorf("limit %d is not between 1 and %d", r.Limit, MaxLimit)
	}
	_, _, err := ParseCursor(r.Cursor)
	return r, err
}
