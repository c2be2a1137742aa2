package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code classifies an error for clients. The table Codes says each one's HTTP status and whether a retry can help.
type Code string

// The codes of API v1 (docs/errors.md is generated from Codes).
const (
	CodeInvalidArgument     Code = "invalid_argument"
	CodeUnknownField        Code = "unknown_field"
	CodeMalformedBody       Code = "malformed_body"
	CodeBodyTooLarge        Code = "body_too_large"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeForbidden           Code = "forbidden"
	CodeNotFound            Code = "not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeTemplateNotFound    Code = "template_not_found"
	CodeTemplateInUse       Code = "template_in_use"
	CodeImageInvalid        Code = "image_invalid"
	CodeRegistry            Code = "registry_failed"
	CodeNameTaken           Code = "name_taken"
	CodeIdempotencyConflict Code = "idempotency_conflict"
	CodeInvalidState        Code = "invalid_state"
	CodeSandboxBusy         Code = "sandbox_busy"
	CodeStateMismatch       Code = "state_mismatch"
	CodeIsDirectory         Code = "is_directory"
	CodeNotDirectory        Code = "not_a_directory"
	CodeAlreadyExists       Code = "already_exists"
	CodeNotEmpty            Code = "directory_not_empty"
	CodeContentMismatch     Code = "content_mismatch"
	CodeRange               Code = "range_not_satisfiable"
	CodePermissionDenied    Code = "permission_denied"
	CodeStdinOffset         Code = "stdin_offset_mismatch"
	CodeStdinClosed         Code = "stdin_closed"
	CodeNotRunning          Code = "not_running"
	CodeGuestDiskFull       Code = "guest_disk_full"
	CodeCapacity            Code = "capacity_exhausted"
	CodePoolFull            Code = "pool_full"
	CodeDriverUnavailable   Code = "driver_unavailable"
	CodeUnavailable         Code = "unavailable"
	CodeDraining            Code = "draining"
	CodeGuestNotReady       Code = "guest_not_ready"
	CodeGuestFault          Code = "guest_fault"
	CodeVMMFailed           Code = "vmm_failed"
	CodeHostSetup           Code = "host_setup"
	CodeInterrupted         Code = "interrupted"
	CodeCanceled            Code = "canceled"
	CodeDeadline            Code = "deadline_exceeded"
	CodeInternal            Code = "internal"
)

// CodeInfo is one row of the table of codes.
type CodeInfo struct {
	Code      Code
	Status    int  // HTTP status
	Retryable bool // the same call may succeed later without a change by the caller
	Meaning   string
	Remedy    string // what helps in general, for errors that know nothing better
}

// Codes returns the table of all codes, in the order of their status.
func Codes() []CodeInfo {
	return []CodeInfo{
		{CodeInvalidArgument, 400, false, "a field or parameter has a value that is not allowed", "correct the fields; /docs has their types and bounds"},
		{CodeUnknownField, 400, false, "the body has a field this version does not know; nothing is ignored silently", "leave them out; /docs has what this version knows"},
		{CodeMalformedBody, 400, false, "the body is not valid JSON or not valid UTF-8", "send one JSON object in UTF-8"},
		{CodeImageInvalid, 400, false, "the image or archive is damaged, over a limit, not for this machine, or holds what is refused", "mend the image, or use another one"},
		{CodeUnauthenticated, 401, false, "the key or token is missing, unknown or expired", "send a valid key or token"},
		{CodeForbidden, 403, false, "the key or token does not allow this", "use a key or token that allows it"},
		{CodePermissionDenied, 403, false, "the guest's user may not do this to that file", "use another user or path"},
		{CodeNotFound, 404, false, "no such route, sandbox, operation, command or file", "check the id, name or path"},
		{CodeTemplateNotFound, 404, false, "no template has this name or digest", "GET /v1/templates lists them"},
		{CodeMethodNotAllowed, 405, false, "the route exists, the method does not", "see /docs"},
		{CodeNameTaken, 409, false, "a live sandbox has this name", "choose another name, or delete that sandbox"},
		{CodeTemplateInUse, 409, false, "a live sandbox was made from this template", "delete the sandboxes made from it first"},
		{CodeIdempotencyConflict, 409, false, "the Idempotency-Key was used with another body", "use a new key for a new request"},
		{CodeInvalidState, 409, false, "the verb is not legal in this state; the remedy names one that helps", "look at its state, and change that first"},
		{CodeSandboxBusy, 409, true, "a transition is under way and if_busy=fail was asked", "try again when the transition has ended"},
		{CodeIsDirectory, 409, false, "a directory is where a file is meant", "name a file"},
		{CodeNotDirectory, 409, false, "a file is where a directory is meant", "name a directory"},
		{CodeAlreadyExists, 409, false, "something is at the path already", "choose another name, or allow what is there (overwrite, create_parents)"},
		{CodeNotEmpty, 409, false, "the directory is not empty and recursive was not asked", "remove what is in it (recursive=true)"},
		{CodeStdinOffset, 409, false, "stdin has accepted another number of bytes than the given offset", "go on from stdin_bytes"},
		{CodeStdinClosed, 409, false, "the process has no open standard input", "create the command with \"stdin\": true, and write before its end"},
		{CodeNotRunning, 409, false, "the process is not running", "look at its state: GET /v1/commands/{id}"},
		{CodeCanceled, 409, false, "the operation was canceled", "ask again if it is still wanted"},
		{CodeInterrupted, 409, true, "the operation was cut off by a restart and has been cleaned up", "ask again"},
		{CodeStateMismatch, 412, false, "if_state was given and the sandbox is in another state", "look at the sandbox's state, and decide again"},
		{CodeContentMismatch, 412, false, "if_match was given and the file's content is another", "read the file again, and decide again"},
		{CodeBodyTooLarge, 413, false, "the body is larger than this route accepts", "send less, or send it as a file"},
		{CodeRange, 416, false, "the range begins behind the end of the file", "ask for bytes that are there"},
		{CodeCapacity, 429, true, "the host has no room for it now; nothing happened", "try again later, or delete what is not needed"},
		{CodeInternal, 500, false, "a fault of ours; the log has the details", "see the log of the SPACE processes"},
		{CodeGuestFault, 502, false, "the guest's agent answered something that makes no sense", "try again; if it stays, delete the sandbox"},
		{CodeRegistry, 502, true, "the registry could not be reached, refused, or does not have the image", "check the image's name, and that the registry can be reached from this host"},
		{CodeVMMFailed, 502, false, "the virtual machine monitor could not be started or ended too early", "try again; the log of the node has the details"},
		{CodeDriverUnavailable, 503, false, "the driver does not work on this host", "space doctor says what is missing"},
		{CodeHostSetup, 503, false, "the host lacks something that space setup provides", "run space doctor, then space setup"},
		{CodeUnavailable, 503, true, "a part of SPACE is starting or restarting; nothing happened", "try again in a moment"},
		{CodeDraining, 503, true, "an operator has this host refuse creates and recoveries; nothing happened", "try again later, or end it: space drain --undo"},
		{CodeGuestNotReady, 504, true, "the guest did not answer within its deadline", "try again; look at the sandbox's load"},
		{CodeDeadline, 504, true, "the operation did not end within its deadline", "try again, with a smaller task or when the host has less to do"},
		{CodeGuestDiskFull, 507, false, "the guest's disk is full", "delete files in the sandbox, or make one with a larger disk"},
		{CodePoolFull, 507, true, "the host's pool is full", "delete sandboxes, or free space on the host"},
	}
}

// Info returns the row of c; an unknown code counts as internal.
func (c Code) Info() CodeInfo {
	rows := Codes()
	for _, r := range rows {
		if r.Code == c {
			return r
		}
	}
	return CodeInternal.Info()
}

// FieldError says what is wrong with one field of a request.
type FieldError struct {
	Field   string
	Message string
}

// Error is the error of the house at every boundary between its processes and to clients: what happened (Message),
// why (Cause) and what to do (Remedy).
type Error struct {
	Code    Code
	Message string
	Cause   string
	Remedy  string
	Fields  []FieldError
	// RetryAfter is when the same call may succeed, for codes that mean that nothing happened; 0: not known.
	RetryAfter time.Duration
	Err        error // wrapped; for logs, never shown to clients

	SandboxID   ID          // the sandbox that stands in the way, where it is known
	OperationID OperationID // and its operation under way
}

func (e *Error) Error() string {
	s := e.Message
	if e.Cause != "" {
		s += " (" + e.Cause + ")"
	}
	if e.Err != nil && !strings.Contains(s, e.Err.Error()) {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error with a message only; a %w verb is kept for errors.Is and errors.As.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// AsError finds the Error in err's chain; any other error becomes an internal one that wraps it.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeInternal, Message: "internal error", Remedy: "see the log of the SPACE processes", Err: err}
}

// CodeOf returns the code of err ("" for nil).
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return AsError(err).Code
}
