package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/transcript"
)

// recordRetry is how long a recorder waits before it follows a session again whose stream has broken.
const recordRetry = 500 * time.Millisecond

// recordedStreams are the names of the streams in transcripts.
func recordedStreams() map[agentv1.OutputStream]string {
	return map[agentv1.OutputStream]string{agentv1.OutputStream_OUTPUT_STREAM_STDOUT: "stdout",
		agentv1.OutputStream_OUTPUT_STREAM_STDERR: "stderr", agentv1.OutputStream_OUTPUT_STREAM_PTY: "pty"}
}

// recorders knows which sessions are being recorded.
type recorders struct {
	mu     sync.Mutex
	active map[sandbox.CommandID]bool
}

func newRecorders() *recorders { return &recorders{active: map[sandbox.CommandID]bool{}} }

func (r *recorders) begin(id sandbox.CommandID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active[id] {
		return false
	}
	r.active[id] = true
	return true
}

func (r *recorders) end(id sandbox.CommandID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, id)
}

// record follows a session that has been started and is to be recorded, unless that is done already. Until its end is
// kept, the agent does not forget its output. Call it before the session's end is acknowledged.
func (c *Control) record(cmd sandbox.Command) {
	if !cmd.Spec.Record || cmd.State == sandbox.CommandCreated || c.Transcripts == nil || c.Transcripts.Ended(cmd.ID) ||
		!c.recorders.begin(cmd.ID) {
		return
	}
	release := c.holds.read(cmd.ID)
	c.workers.Go(func() {
		defer c.letGo(cmd.ID, release)
		defer c.recorders.end(cmd.ID)
		if err := c.recordToTheEnd(c.base, cmd); err != nil && c.base.Err() == nil {
			c.Logger.Error("a session could not be recorded", "command_id", cmd.ID, "error", err)
		}
	})
}

// recordToTheEnd writes a session's transcript over restarts of the gateway, until the session has ended or is gone.
func (c *Control) recordToTheEnd(ctx context.Context, cmd sandbox.Command) (err error) {
	w, err := c.Transcripts.Writer(cmd.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		last, ferr := c.recordStream(ctx, cmd, w)
		if ferr == nil {
			end, _ := c.advance(cmd, last)
			return w.End(c.resultEntry(end))
		}
		if broken, ok := errors.AsType[*transcriptError](ferr); ok {
			return broken.err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now, err := c.command(ctx, cmd.ID)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound: // deleted together with its sandbox
			cmd.State, cmd.Reason, cmd.EndedAt = sandbox.CommandLost, string(sandbox.StateDeleted), c.Now().UTC()
			return w.End(c.resultEntry(cmd))
		case err == nil && now.State.Ended() && !transient(ferr):
			return w.End(c.resultEntry(now))
		}
		select {
		case <-time.After(recordRetry):
		case <-ctx.Done():
		}
	}
}

// transcriptError ends a recording: its file cannot be written.
type transcriptError struct{ err error }

func (e *transcriptError) Error() string { return e.err.Error() }

// recordStream follows a session from where its transcript ends, and returns how it ended.
func (c *Control) recordStream(ctx context.Context, cmd sandbox.Command, w *transcript.Writer) (*agentv1.Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	names := recordedStreams()
	req := &gatewayv1.FollowOutputRequest{SandboxId: string(cmd.SandboxID), ProcessId: string(cmd.ProcessID)}
	for stream, name := range names {
		req.Positions = append(req.Positions, &agentv1.StreamPosition{Stream: stream, Offset: w.Next(name)})
	}
	stream, err := c.Deps.Gateway.FollowOutput(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, stopped(ctx, err)
	}
	defer func() { _ = stream.Close() }() // Err has said what went wrong
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *agentv1.AttachResponse_Data_:
			offset := e.Data.GetOffset()
			for piece := range slices.Chunk(e.Data.GetData(), transcript.MaxData) {
				err = errors.Join(err, w.Add(apiv1.TranscriptEntry{Type: apiv1.TranscriptOutput, Time: c.Now().UTC(),
					Stream: names[e.Data.GetStream()], Offset: offset, Data: piece}))
				offset += uint64(len(piece))
			}
		case *agentv1.AttachResponse_Gap_:
			err = w.Add(apiv1.TranscriptEntry{Type: apiv1.TranscriptGap, Time: c.Now().UTC(),
				Stream: names[e.Gap.GetStream()], Offset: e.Gap.GetFrom(), To: e.Gap.GetTo()})
		case *agentv1.AttachResponse_Exit:
			return e.Exit, nil
		}
		if err != nil {
			return nil, &transcriptError{err}
		}
	}
	return nil, stopped(ctx, stream.Err())
}

// resultEntry is the last entry of a transcript.
func (c *Control) resultEntry(cmd sandbox.Command) apiv1.TranscriptEntry {
	e := apiv1.TranscriptEntry{Type: apiv1.TranscriptResult, Time: c.Now().UTC(), SandboxID: string(cmd.SandboxID),
		Argv: cmd.Spec.Argv, State: string(cmd.State), Reason: cmd.Reason, ExitCode: cmd.ExitCode, Signal: cmd.Signal,
		StdoutBytes: cmd.StdoutBytes, StderrBytes: cmd.StderrBytes, PTYBytes: cmd.PTYBytes, TruncatedBytes: cmd.Truncated}
	if cmd.ErrorCode != "" {
		e.Error = &apiv1.CommandError{Code: cmd.ErrorCode, Message: cmd.ErrorMessage}
	}
	if !cmd.StartedAt.IsZero() {
		e.StartedAt = &cmd.StartedAt
	}
	if !cmd.EndedAt.IsZero() {
		e.EndedAt = &cmd.EndedAt
	}
	return e
}

// Transcript returns what is kept of a recorded session, as lines of JSON. Close it.
func (c *Control) Transcript(ctx context.Context, id sandbox.CommandID) (io.ReadCloser, error) {
	missing := &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no transcript of this command session",
		Cause: string(id), Remedy: `create the session with "record": true`}
	if c.Transcripts == nil {
		return nil, missing
	}
	r, err := c.Transcripts.Read(id)
	if errors.Is(err, fs.ErrNotExist) {
		if cmd, err := c.Store.Command(ctx, id); err == nil && cmd.Spec.Record { // nothing has been written yet
			return io.NopCloser(strings.NewReader("")), nil
		}
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("read a transcript: %w", err)
	}
	return r, nil
}
