package apiv1

import "time"

// Operation is the durable record of one lifecycle request.
type Operation struct {
	ID        string           `json:"id" example:"op_k3v0q7c2m9x4b8n1z5w6"`
	Kind      string           `json:"kind" example:"create"`
	Resource  Resource         `json:"resource"`
	State     string           `json:"state" enum:"queued,running,succeeded,failed,canceled"`
	NoChange  bool             `json:"no_change,omitempty" doc:"It was already so"`
	Attempt   int              `json:"attempt" doc:"1, and one more for each restart of SPACE that it went on after"`
	CreatedAt time.Time        `json:"created_at"`
	StartedAt *time.Time       `json:"started_at"`
	EndedAt   *time.Time       `json:"ended_at"`
	Steps     []Step           `json:"steps" nullable:"false"`
	Result    *OperationResult `json:"result" doc:"Of a succeeded operation, else null"`
	Error     *Problem         `json:"error" doc:"Of a failed or canceled operation, else null"`
}

// Ended reports whether the operation's state is final.
func (o Operation) Ended() bool {
	return o.State == "succeeded" || o.State == "failed" || o.State == "canceled"
}

// Resource is what an operation works on.
type Resource struct {
	Type string `json:"type" enum:"sandbox,template,checkpoint"`
	ID   string `json:"id"`
}

// Step is one named part of an operation.
type Step struct {
	Name      string     `json:"name"`
	State     string     `json:"state" enum:"queued,running,succeeded,failed,canceled"`
	StartedAt *time.Time `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	MS        *float64   `json:"ms" doc:"How long it took; null until it has ended"`
	Attempts  int        `json:"attempts,omitempty" doc:"How often it was begun again after a passing failure"`
	Error     string     `json:"error,omitempty"`
}

// OperationResult is what a succeeded operation has made or changed. What has been deleted since is left out.
type OperationResult struct {
	Sandbox  *Sandbox  `json:"sandbox,omitempty"`
	Template *Template `json:"template,omitempty"`
}
