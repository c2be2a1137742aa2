package sandbox

import (
	"maps"
	"slices"
	"time"
)

// CommandState is where a command session is in its life.
type CommandState string

// The states of a command session.
const (
	CommandCreated CommandState = "created" // the process runs from the first attach
	CommandRunning CommandState = "running"
	CommandExited  CommandState = "exited"
	CommandFailed  CommandState = "failed"  // it could never be started; ErrorCode says why
	CommandExpired CommandState = "expired" // it was never attached
	CommandLost    CommandState = "lost"    // its machine went away; Reason says how
)

// Ended reports whether the state is final.
func (s CommandState) Ended() bool {
	return s == CommandExited || s == CommandFailed || s == CommandExpired || s == CommandLost
}

// CommandSpec is what a caller asks to run.
type CommandSpec struct {
	Argv           []string
	Env            map[string]string // the command's own part; template and sandbox come below it
	Cwd            string
	User           string // "" is the template's
	Stdin          bool
	PTY            *TerminalSize // nil without a terminal
	TimeoutSeconds float64
	Tag            string
	Record         bool // keep a transcript on the host
}

// TerminalSize is the size of a terminal in characters; both are 1 to 65535.
type TerminalSize struct {
	Cols uint16
	Rows uint16
}

// Command is the durable record of one command session.
type Command struct {
	ID           CommandID
	SandboxID    ID
	ProcessID    ProcessID
	Spec         CommandSpec
	State        CommandState
	Reason       string // of CommandLost
	PID          int
	ExitCode     *int   // nil until exited; -1 when a signal ended it
	Signal       string // SIGKILL …
	ErrorCode    string // command_not_found, cwd_not_found, user_not_found, permission_denied, start_failed, canceled, deadline_exceeded
	ErrorMessage string
	CreatedAt    time.Time
	StartedAt    time.Time // zero until started
	EndedAt      time.Time // zero until ended
	StdoutBytes  uint64
	StderrBytes  uint64
	PTYBytes     uint64
	StdinBytes   uint64
	Truncated    uint64 // bytes dropped from the spool
	Epoch        int64
	Revision     int64 // counts the changes of this record; kept by the store
}

// Clone returns a deep copy.
func (c Command) Clone() Command {
	c.Spec.Argv = slices.Clone(c.Spec.Argv)
	c.Spec.Env = maps.Clone(c.Spec.Env)
	if c.Spec.PTY != nil {
		size := *c.Spec.PTY
		c.Spec.PTY = &size
	}
	if c.ExitCode != nil {
		code := *c.ExitCode
		c.ExitCode = &code
	}
	return c
}

// Condition says in which state c is, and why.
func (c Command) Condition() string {
	text := "the command session is " + string(c.State)
	if c.Reason != "" {
		text += " (" + c.Reason + ")"
	}
	return text
}
