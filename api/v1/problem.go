package apiv1

// Problem is the body of every answer that is not 2xx (application/problem+json), and the error of a failed operation.
type Problem struct {
	Status      int          `json:"status" doc:"HTTP status"`
	Code        string       `json:"code" doc:"One of the codes in docs/errors.md" example:"sandbox_busy"`
	Message     string       `json:"message" doc:"What happened"`
	Cause       string       `json:"cause" doc:"Why; empty when there is nothing to add"`
	Remedy      string       `json:"remedy" doc:"What to do; empty when nothing helps"`
	Retryable   bool         `json:"retryable" doc:"The same call may succeed later without a change by the caller"`
	OperationID string       `json:"operation_id,omitempty"`
	SandboxID   string       `json:"sandbox_id,omitempty"`
	Fields      []FieldError `json:"fields,omitempty" nullable:"false" doc:"The fields or parameters that are wrong"`
	StdinBytes  *uint64      `json:"stdin_bytes,omitempty" doc:"With stdin_offset_mismatch: how many bytes of standard input were accepted so far"`
}

// FieldError says what is wrong with one field or parameter of a request.
type FieldError struct {
	Field   string `json:"field" example:"vcpus"`
	Message string `json:"message"`
}
