package control

import (
	"context"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// execution is one Exec at work. One goroutine uses it.
type execution struct {
	c             *Control
	cmd           sandbox.Command
	stdin         []byte
	giveBack      func() // the room of stdin; called when it has been read, or is not going to be
	fed           bool
	first, second collected // stdout, or what the terminal showed; stderr
	whole         bool      // all that the command wrote has been looked at
}

// collected is the beginning of one stream: at most maxExecOutput bytes of what the agent had.
type collected struct {
	stream agentv1.OutputStream
	data   []byte
	next   uint64 // offset of the byte behind data
}

// followTime is how long an exec has a stream to its guest. Of those there are not as many as there may be commands.
const followTime = 10 * time.Second

// begin makes cmd the command that is run.
func (x *execution) begin(cmd sandbox.Command) {
	x.cmd = cmd
	x.first.stream, x.second.stream = agentv1.OutputStream_OUTPUT_STREAM_STDOUT, agentv1.OutputStream_OUTPUT_STREAM_STDERR
	if cmd.Spec.PTY != nil { // there is one stream then, and it is shown as the first
		x.first.stream = agentv1.OutputStream_OUTPUT_STREAM_PTY
	}
}

// run starts the command and returns its record once it has ended, or as it is when ctx ends.
func (x *execution) run(ctx context.Context) (sandbox.Command, error) {
	c := x.c
	if !x.cmd.State.Ended() {
		if exit := x.follow(ctx); exit != nil {
			cmd, err := c.recordProcess(context.WithoutCancel(ctx), x.cmd.SandboxID, exit)
			if err == nil && cmd.ID == "" {
				return cmd, noCommand(x.cmd.ID) // deleted together with its sandbox
			}
			return cmd, storeError(err)
		}
	}
	cmd, err := c.startPatiently(ctx, x.cmd)
	if err != nil {
		return cmd, err
	}
	if !cmd.State.Ended() {
		x.feed()
	}
	return c.waitCommand(ctx, cmd.ID)
}

// follow starts the command and follows it to its end over one stream: each further call to a guest costs milliseconds.
// It returns nil when that did not work out (the gateway went away, it takes long, there is more output than is wanted):
// then it may or may not have been started, and things are to be done one by one.
func (x *execution) follow(ctx context.Context) *agentv1.Process {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	req := &gatewayv1.FollowOutputRequest{SandboxId: string(x.cmd.SandboxID), ProcessId: string(x.cmd.ProcessID), Start: true,
		Positions: []*agentv1.StreamPosition{{Stream: x.first.stream}, {Stream: x.second.stream}}}
	stream, err := x.c.Deps.Gateway.FollowOutput(ctx, connect.NewRequest(req))
	if err != nil {
		x.c.Logger.DebugContext(ctx, "an exec could not be followed", "command_id", x.cmd.ID, "error", err)
		return nil
	}
	defer func() { _ = stream.Close() }() // Err has said what went wrong
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *agentv1.AttachResponse_Started:
			x.feed()
		case *agentv1.AttachResponse_Data_:
			if x.of(e.Data.GetStream()).take(e.Data.GetOffset(), e.Data.GetData()) {
				return nil // it runs on without a reader who would only throw the rest away
			}
		case *agentv1.AttachResponse_Gap_:
			x.of(e.Gap.GetStream()).next = e.Gap.GetTo()
		case *agentv1.AttachResponse_Exit:
			x.whole = true
			return e.Exit
		}
	}
	x.c.Logger.DebugContext(ctx, "an exec could not be followed to its end", "command_id", x.cmd.ID, "error", stream.Err())
	return nil
}

// of returns the stream of that number; the gateway sends only those that were asked for.
func (x *execution) of(stream agentv1.OutputStream) *collected {
	if stream == x.second.stream {
		return &x.second
	}
	return &x.first
}

// take keeps data and reports whether it was more than is wanted.
func (s *collected) take(offset uint64, data []byte) (more bool) {
	room := maxExecOutput - len(s.data)
	s.data = append(s.data, data[:min(room, len(data))]...)
	s.next = offset + uint64(len(data))
	return len(data) > room
}

// feed writes what the caller gave to the command's standard input, once, in the background.
func (x *execution) feed() {
	if x.cmd.Spec.Stdin && !x.fed {
		x.fed = true
		x.c.workers.Go(func() {
			defer x.giveBack()
			x.c.feed(x.cmd, x.stdin)
		})
	}
}

// unfed gives the room of stdin back when nobody feeds it.
func (x *execution) unfed() {
	if !x.fed {
		x.giveBack()
	}
}

// readRest reads what is still wanted of both streams, also for a moment after ctx has ended.
func (x *execution) readRest(ctx context.Context) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), liveTimeout)
		defer cancel()
	}
	for _, s := range []*collected{&x.first, &x.second} {
		if err := x.read(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (x *execution) read(ctx context.Context, s *collected) error {
	for len(s.data) < maxExecOutput {
		var res *gatewayv1.ReadOutputResponse
		patient, cancel := context.WithTimeout(ctx, x.c.Limits.StartPatience) // for a guest that cannot be reached any more
		err := x.c.insist(patient, x.c.gateway, "ReadOutput", x.c.whileRunning(x.cmd.SandboxID), func(ctx context.Context) (err error) {
			res, err = call(ctx, x.c.Limits.CallTimeout, x.c.Deps.Gateway.ReadOutput, &gatewayv1.ReadOutputRequest{
				SandboxId: string(x.cmd.SandboxID), ProcessId: string(x.cmd.ProcessID), Stream: s.stream, Offset: s.next,
				MaxBytes: uint32(min(readChunk, maxExecOutput-len(s.data)))})
			return err
		})
		cancel()
		if err != nil {
			return err
		}
		s.take(res.Offset, res.Data)
		if !res.More || len(res.Data) == 0 {
			break
		}
	}
	return nil
}
