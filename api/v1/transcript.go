package apiv1

import "time"

// Types of transcript entries.
const (
	TranscriptOutput = "output"
	TranscriptGap    = "gap"
	TranscriptResult = "result"
)

// TranscriptEntry is one line of GET /v1/commands/{id}/transcript. Type says which fields count.
type TranscriptEntry struct {
	Type string    `json:"type" enum:"output,gap,result"`
	Time time.Time `json:"time" doc:"When the host got it"`

	// Of output and gap. A first entry with an offset above 0 says that the entries before it are not kept any more.
	Stream string `json:"stream,omitempty" enum:"stdout,stderr,pty"`
	Offset uint64 `json:"offset,omitempty" doc:"Of the first byte"`
	Data   []byte `json:"data,omitempty" doc:"Base64"`
	To     uint64 `json:"to,omitempty" doc:"Of a gap: the bytes from offset up to here were dropped before they could be recorded"`

	// Of result, which is last.
	SandboxID      string        `json:"sandbox_id,omitempty"`
	Argv           []string      `json:"argv,omitempty"`
	State          string        `json:"state,omitempty"`
	Reason         string        `json:"reason,omitempty"`
	ExitCode       *int          `json:"exit_code,omitempty"`
	Signal         string        `json:"signal,omitempty"`
	Error          *CommandError `json:"error,omitempty"`
	StartedAt      *time.Time    `json:"started_at,omitempty"`
	EndedAt        *time.Time    `json:"ended_at,omitempty"`
	StdoutBytes    uint64        `json:"stdout_bytes,omitempty"`
	StderrBytes    uint64        `json:"stderr_bytes,omitempty"`
	PTYBytes       uint64        `json:"pty_bytes,omitempty"`
	TruncatedBytes uint64        `json:"truncated_bytes,omitempty"`
}
