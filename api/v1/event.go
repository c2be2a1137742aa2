package apiv1

import (
	"encoding/json"
	"time"
)

// Event says that something has changed, and how it is now.
type Event struct {
	// Seq is the event's place in the log. It grows by one with each event and is the id of the server-sent event.
	Seq         int64     `json:"seq"`
	Time        time.Time `json:"time"`
	Type        string    `json:"type" enum:"operation,sandbox,lease,command,template"`
	SandboxID   string    `json:"sandbox_id,omitempty"`
	OperationID string    `json:"operation_id,omitempty" doc:"The operation that did it, or is under way"`
	// Object is an Operation, Sandbox, LeaseChange, Command or Template, as it was then. It has "truncated": true when a
	// long part was left out. Environments and results of operations are always left out.
	Object json.RawMessage `json:"object"`
}

// LeaseChange is the object of a lease event.
type LeaseChange struct {
	Change string `json:"change" enum:"set,removed,expired"`
	Lease  *Lease `json:"lease" doc:"As it is now; null: there is none any more"`
}

// EventGap says that events are missing: those before Oldest are not kept any more.
type EventGap struct {
	Oldest int64 `json:"oldest"`
}
