package apiv1

// AttachProtocol is the WebSocket subprotocol of GET /v1/attach/{id} on the data plane. Its messages are binary; the
// first byte is the channel, the rest the payload.
const AttachProtocol = "space.attach.v1"

// The channels of AttachProtocol.
const (
	ChannelStdin   byte = 0
	ChannelStdout  byte = 1
	ChannelStderr  byte = 2
	ChannelPTY     byte = 3
	ChannelControl byte = 4 // JSON, one object a message
)

// Close codes of the attach WebSocket.
const (
	CloseExit      = 4000 // the process has ended and everything was sent
	CloseTakenOver = 4001 // another client took the session over
	CloseStopped   = 4002 // the sandbox was paused or suspended, the text says why: attach again from your offsets when it goes on
	CloseLost      = 4003 // the machine is gone
)

// Types of control frames.
const (
	FrameStarted = "started"
	FrameGap     = "gap"
	FrameExit    = "exit"
	FrameError   = "error"
	FrameEOF     = "eof"
	FrameSignal  = "signal"
	FrameResize  = "resize"
)

// Control is one control frame of AttachProtocol. Type says which fields count: from the server started, gap and exit;
// from the client eof, signal and resize.
type Control struct {
	Type string `json:"type"`

	// Of started: where the streams of this connection begin.
	PID          int    `json:"pid,omitempty"`
	Epoch        int64  `json:"epoch,omitempty"`
	StdoutOffset uint64 `json:"stdout_offset,omitempty"`
	StderrOffset uint64 `json:"stderr_offset,omitempty"`
	PTYOffset    uint64 `json:"pty_offset,omitempty"`
	StdinOffset  uint64 `json:"stdin_offset,omitempty"`

	// Of gap: the bytes from <= n < to of the stream are gone.
	Channel byte   `json:"channel,omitempty"`
	From    uint64 `json:"from,omitempty"`
	To      uint64 `json:"to,omitempty"`

	// Of resize.
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`

	// Of exit.
	State    string        `json:"state,omitempty"`
	ExitCode *int          `json:"exit_code,omitempty"`
	Signal   string        `json:"signal,omitempty"`
	Error    *CommandError `json:"error,omitempty"`
}
