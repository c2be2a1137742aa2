package ingress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	// maxFrameIn bounds a message of a client, channel byte included.
	maxFrameIn = 1<<20 + 1
	// maxFrameOut is what we send at most in one message, channel byte included: 32 KiB is the smallest default limit
	// among common WebSocket clients.
	maxFrameOut   = 32 << 10
	maxControlIn  = 4 << 10
	maxReasonText = 123 // bytes of text in a WebSocket close frame
)

// channelOf maps a stream to its channel byte.
func channelOf(s agentv1.OutputStream) byte {
	switch s {
	case agentv1.OutputStream_OUTPUT_STREAM_STDERR:
		return apiv1.ChannelStderr
	case agentv1.OutputStream_OUTPUT_STREAM_PTY:
		return apiv1.ChannelPTY
	}
	return apiv1.ChannelStdout
}

// The control frames that go to clients. Every field is always there.
type (
	startedFrame struct {
		Type         string `json:"type"`
		PID          int32  `json:"pid"`
		Epoch        int64  `json:"epoch"`
		StdoutOffset uint64 `json:"stdout_offset"`
		StderrOffset uint64 `json:"stderr_offset"`
		PTYOffset    uint64 `json:"pty_offset"`
		StdinOffset  uint64 `json:"stdin_offset"`
	}
	gapFrame struct {
		Type    string `json:"type"`
		Channel byte   `json:"channel"`
		From    uint64 `json:"from"`
		To      uint64 `json:"to"`
	}
	// exitFrame has the fields of a command's result as GET /v1/commands/{id} shows them.
	exitFrame struct {
		Type           string              `json:"type"`
		ID             sandbox.CommandID   `json:"id"`
		SandboxID      sandbox.ID          `json:"sandbox_id"`
		ProcessID      sandbox.ProcessID   `json:"process_id"`
		State          string              `json:"state"`
		PID            *int32              `json:"pid"`
		ExitCode       *int32              `json:"exit_code"`
		Signal         *string             `json:"signal"`
		Error          *apiv1.CommandError `json:"error"`
		StartedAt      *time.Time          `json:"started_at"`
		EndedAt        *time.Time          `json:"ended_at"`
		StdoutBytes    uint64              `json:"stdout_bytes"`
		StderrBytes    uint64              `json:"stderr_bytes"`
		PTYBytes       uint64              `json:"pty_bytes"`
		StdinBytes     uint64              `json:"stdin_bytes"`
		TruncatedBytes uint64              `json:"truncated_bytes"`
		Epoch          int64               `json:"epoch"`
	}
	// errorFrame tells that something the client sent could not be done; the session goes on.
	errorFrame struct {
		Type  string             `json:"type"`
		Error apiv1.CommandError `json:"error"`
	}
)

func newStartedFrame(s Session, src *source) startedFrame {
	return startedFrame{Type: apiv1.FrameStarted, PID: src.Started.GetPid(), Epoch: s.Epoch,
		StdoutOffset: src.Offset(agentv1.OutputStream_OUTPUT_STREAM_STDOUT),
		StderrOffset: src.Offset(agentv1.OutputStream_OUTPUT_STREAM_STDERR),
		PTYOffset:    src.Offset(agentv1.OutputStream_OUTPUT_STREAM_PTY), StdinOffset: src.Started.GetStdinBytes()}
}

func newExitFrame(s Session, p *agentv1.Process) exitFrame {
	f := exitFrame{Type: apiv1.FrameExit, ID: s.CommandID, SandboxID: s.SandboxID, ProcessID: s.ProcessID,
		State: string(sandbox.CommandExited), Epoch: s.Epoch, StartedAt: timeOf(p.GetStartedAt()), EndedAt: timeOf(p.GetEndedAt()),
		StdoutBytes: p.GetStdoutBytes(), StderrBytes: p.GetStderrBytes(), PTYBytes: p.GetPtyBytes(), StdinBytes: p.GetStdinBytes(), TruncatedBytes: p.GetTruncatedBytes()}
	if p.GetState() == agentv1.ProcessState_PROCESS_STATE_FAILED {
		f.State = string(sandbox.CommandFailed)
		if p.GetErrorCode() == string(sandbox.CommandExpired) { // as control records it
			f.State = string(sandbox.CommandExpired)
		}
	} else {
		f.ExitCode = new(p.GetExitCode())
	}
	if p.GetPid() != 0 {
		f.PID = new(p.GetPid())
	}
	if p.GetSignal() != "" {
		f.Signal = new(p.GetSignal())
	}
	if p.GetErrorCode() != "" {
		f.Error = &apiv1.CommandError{Code: p.GetErrorCode(), Message: p.GetErrorMessage()}
	}
	return f
}

func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.AsTime())
}

func newErrorFrame(err error) errorFrame {
	e := sandbox.AsError(err)
	return errorFrame{Type: apiv1.FrameError, Error: apiv1.CommandError{Code: string(e.Code), Message: e.Error()}}
}

// exitReason is the text that goes with close code 4000.
func exitReason(p *agentv1.Process) string {
	switch {
	case p.GetState() == agentv1.ProcessState_PROCESS_STATE_FAILED:
		return "never started: " + p.GetErrorCode()
	case p.GetErrorCode() != "":
		return "ended: " + p.GetErrorCode()
	case p.GetSignal() != "":
		return "ended by " + p.GetSignal()
	}
	return fmt.Sprintf("exited with code %d", p.GetExitCode())
}

// reasonText cuts text to what fits a close frame without breaking a character.
func reasonText(text string) string {
	if len(text) <= maxReasonText {
		return text
	}
	cut := maxReasonText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

// clientControl is what a client may ask for on the control channel.
type clientControl struct {
	eof    bool
	signal string                // "" unless a signal is meant
	size   *agentv1.TerminalSize // nil unless a resize is meant
}

// errUnknownControl: the frame is well formed but asks for something this version does not know; the session goes on.
var errUnknownControl = errors.New("unknown control frame")

// parseControl reads a control frame of a client: one JSON object, at most 4 KiB, without fields that are unknown or
// belong to another type.
func parseControl(data []byte) (clientControl, error) {
	if len(data) > maxControlIn {
		return clientControl{}, fmt.Errorf("a control frame has at most %d bytes", maxControlIn)
	}
	if !utf8.Valid(data) {
		return clientControl{}, errors.New("a control frame must be UTF-8")
	}
	var f struct {
		Type   string  `json:"type"`
		Signal *string `json:"signal"`
		Cols   *uint16 `json:"cols"`
		Rows   *uint16 `json:"rows"`
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Type == "" {
		return clientControl{}, errors.New("a control frame must be a JSON object with a type")
	}
	if head.Type != apiv1.FrameEOF && head.Type != apiv1.FrameSignal && head.Type != apiv1.FrameResize {
		return clientControl{}, fmt.Errorf("%w: type %s", errUnknownControl, printable(head.Type))
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return clientControl{}, errors.New("a control frame has fields that are not known or out of range")
	}
	sized := f.Cols != nil && f.Rows != nil && *f.Cols > 0 && *f.Rows > 0
	unsized := f.Cols == nil && f.Rows == nil
	switch {
	case f.Type == apiv1.FrameEOF && f.Signal == nil && unsized:
		return clientControl{eof: true}, nil
	case f.Type == apiv1.FrameSignal && f.Signal != nil && signalName(*f.Signal) && unsized:
		return clientControl{signal: *f.Signal}, nil
	case f.Type == apiv1.FrameResize && f.Signal == nil && sized:
		return clientControl{size: &agentv1.TerminalSize{Cols: uint32(*f.Cols), Rows: uint32(*f.Rows)}}, nil
	}
	return clientControl{}, fmt.Errorf("the control frame %s is not complete or has too much in it", f.Type)
}

// signalName reports whether s looks like SIGTERM or SIGRTMIN+1; whether there is such a signal is the agent's to say.
func signalName(s string) bool {
	if len(s) < 4 || len(s) > 16 || s[:3] != "SIG" {
		return false
	}
	for _, c := range []byte(s[3:]) {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '+' && c != '-' {
			return false
		}
	}
	return true
}
