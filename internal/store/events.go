package store

import (
	"encoding/json"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// EventType says what an event is about.
type EventType string

// The types of events.
const (
	EventSandbox   EventType = "sandbox"
	EventOperation EventType = "operation"
	EventCommand   EventType = "command"
	EventTemplate  EventType = "template"
	EventLease     EventType = "lease"
)

// MaxEvents bounds how many events one look-up returns.
const MaxEvents = 500

// MaxEventScan bounds how many events one look-up goes through, so that a filter which nothing matches costs a bounded
// time too.
const MaxEventScan = 20000

// Event says that something has changed, and how it is now. It is written in the transaction of the change.
type Event struct {
	// Seq is the event's place in the log: 1, 2, 3 …, in the order of commits. No number is given twice, also when old
	// events have been purged. AppendEvent sets it.
	Seq         int64
	Time        time.Time
	Type        EventType
	SandboxID   sandbox.ID          // "" when it concerns none
	OperationID sandbox.OperationID // "" when it concerns none
	Object      json.RawMessage     // what the thing is now, without secrets
}

// EventFilter selects events. The zero value selects all.
type EventFilter struct {
	SandboxID sandbox.ID
	Types     []EventType // any of these
}

// EventPage is a part of the log.
type EventPage struct {
	Events []Event // in order
	// Next is where to go on: everything up to it has been looked at. It equals Newest when all has.
	Next int64
	// Oldest is the first event that is kept; Newest+1 when none is. Whoever has seen less than Oldest-1 has missed some.
	Oldest int64
	// Newest is the last event that was ever written, 0 before the first.
	Newest int64
}
