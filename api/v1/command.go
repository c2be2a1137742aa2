package apiv1

import "time"

// CreateCommand is the body of POST /v1/sandboxes/{id}/commands.
type CreateCommand struct {
	Argv           []string          `json:"argv" minItems:"1" maxItems:"16384" nullable:"false" doc:"Program and arguments; no shell is involved"`
	Env            map[string]string `json:"env,omitempty" maxProperties:"1024" doc:"Above the sandbox's environment"`
	Cwd            string            `json:"cwd,omitempty" maxLength:"4096" doc:"Default: the template's working directory, else the user's home"`
	User           string            `json:"user,omitempty" maxLength:"256" doc:"Name or uid in the guest; default: the template's user"`
	Stdin          bool              `json:"stdin,omitempty" doc:"Keep standard input open; without it the program reads from /dev/null"`
	PTY            *PTY              `json:"pty,omitempty" doc:"Run it on a terminal of this size, which takes the place of standard input, output and error"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"The process group is killed after so long; 0: never"`
	Start          bool              `json:"start,omitempty" doc:"Start at once instead of with the first attach"`
	Tag            string            `json:"tag,omitempty" maxLength:"256" doc:"A label of your own; lists can be filtered by it"`
	Record         bool              `json:"record,omitempty" doc:"Keep a transcript on the host, which stays when the sandbox is gone"`
}

// Exec is the body of POST /v1/sandboxes/{id}/exec.
type Exec struct {
	Argv           []string          `json:"argv" minItems:"1" maxItems:"16384" nullable:"false" doc:"Program and arguments; no shell is involved"`
	Env            map[string]string `json:"env,omitempty" maxProperties:"1024" doc:"Above the sandbox's environment"`
	Cwd            string            `json:"cwd,omitempty" maxLength:"4096" doc:"Default: the template's working directory, else the user's home"`
	User           string            `json:"user,omitempty" maxLength:"256" doc:"Name or uid in the guest; default: the template's user"`
	Stdin          bool              `json:"stdin,omitempty" doc:"Standard input is a pipe with stdin_b64's bytes, then its end, instead of /dev/null"`
	StdinB64       string            `json:"stdin_b64,omitempty" doc:"Standard input, base64; implies stdin"`
	PTY            *PTY              `json:"pty,omitempty" doc:"Run it on a terminal of this size; what it shows is in stdout"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"The process group is killed after so long; 0: never"`
	Start          *bool             `json:"start,omitempty" doc:"An exec always starts at once: true or absent"`
	Tag            string            `json:"tag,omitempty" maxLength:"256" doc:"A label of your own; lists can be filtered by it"`
	Record         bool              `json:"record,omitempty" doc:"Keep a transcript on the host, which stays when the sandbox is gone"`
}

// PTY is the size of a terminal in characters. It is also the body of POST /v1/commands/{id}/resize.
type PTY struct {
	Cols int `json:"cols" minimum:"1" maximum:"65535" example:"80"`
	Rows int `json:"rows" minimum:"1" maximum:"65535" example:"24"`
}

// Command is one command session: one process invocation in a sandbox.
type Command struct {
	ID             string            `json:"id" example:"cmd_k3v0q7c2m9x4b8n1z5w6"`
	SandboxID      string            `json:"sandbox_id"`
	ProcessID      string            `json:"process_id" doc:"Unique inside the sandbox; travels with its memory"`
	State          string            `json:"state" enum:"created,running,exited,failed,expired,lost"`
	Reason         *string           `json:"reason" doc:"Why it is lost, else null"`
	Argv           []string          `json:"argv" nullable:"false"`
	Env            map[string]string `json:"env" doc:"The command's own part of the environment"`
	Cwd            string            `json:"cwd,omitempty"`
	User           string            `json:"user,omitempty"`
	Stdin          bool              `json:"stdin"`
	PTY            *PTY              `json:"pty" doc:"The terminal's size at the start, null without one"`
	TimeoutSeconds float64           `json:"timeout_seconds"`
	Tag            string            `json:"tag,omitempty"`
	Record         bool              `json:"record"`
	PID            *int              `json:"pid"`
	ExitCode       *int              `json:"exit_code" doc:"Null until it has exited; -1 when a signal ended it"`
	Signal         *string           `json:"signal" doc:"The signal that ended it, else null" example:"SIGKILL"`
	Error          *CommandError     `json:"error" doc:"Why it never started or was ended, else null"`
	CreatedAt      time.Time         `json:"created_at"`
	StartedAt      *time.Time        `json:"started_at"`
	EndedAt        *time.Time        `json:"ended_at"`
	StdoutBytes    uint64            `json:"stdout_bytes"`
	StderrBytes    uint64            `json:"stderr_bytes"`
	PTYBytes       uint64            `json:"pty_bytes"`
	StdinBytes     uint64            `json:"stdin_bytes"`
	TruncatedBytes uint64            `json:"truncated_bytes" doc:"Output that is no longer kept"`
	Epoch          int64             `json:"epoch"`
}

// Ended reports whether the command's state is final.
func (c Command) Ended() bool { return c.State != "created" && c.State != "running" }

// CommandError says why a command never started, or what ended it early.
type CommandError struct {
	Code    string `json:"code" doc:"command_not_found, cwd_not_found, user_not_found, permission_denied, start_failed, canceled or deadline_exceeded"`
	Message string `json:"message"`
}

// Attach opens one command session on the data plane, until it expires.
type Attach struct {
	URL       string    `json:"url" example:"ws://127.0.0.1:7071/v1/attach/cmd_k3v0q7c2m9x4b8n1z5w6"`
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Attached is the answer to POST /v1/commands/{id}/attach.
type Attached struct {
	Attach Attach `json:"attach"`
}

// CreatedCommand is the answer to creating a command session.
type CreatedCommand struct {
	Command
	Attach Attach `json:"attach"`
}

// ExecResult is the answer to exec: the command and its output, each stream cut at 1 MiB (stdout_bytes and stderr_bytes
// tell the whole lengths).
type ExecResult struct {
	Command
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Encoding string `json:"encoding" enum:"utf-8,base64" doc:"Of stdout and stderr; base64 when either is not UTF-8"`
}

// Signal is the body of POST /v1/commands/{id}/signal.
type Signal struct {
	Signal string `json:"signal" minLength:"4" maxLength:"16" example:"SIGTERM"`
}
