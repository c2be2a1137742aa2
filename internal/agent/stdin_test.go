package agent

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func TestStdin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.create(&agentv1.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	write := func(data string, eof bool, offset *uint64) (uint64, error) {
		res, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: []byte(data), Eof: eof, Offset: offset}))
		if err != nil {
			return 0, err
		}
		return res.Msg.StdinBytes, nil
	}
	_, err := write("early", false, nil)
	wantCode(t, err, sandbox.CodeNotRunning)
	if _, err := f.agent.StartProcess(t.Context(), connect.NewRequest(&agentv1.StartProcessRequest{ProcessId: id})); err != nil {
		t.Fatal(err)
	}
	zero, three := uint64(0), uint64(3)
	if n, err := write("abc", false, &zero); n != 3 || err != nil {
		t.Errorf("first write: %d, %v", n, err)
	}
	_, err = write("abc", false, &zero)
	wantCode(t, err, sandbox.CodeStdinOffset)
	if e := sandbox.AsError(err); len(e.Fields) != 1 || e.Fields[0].Field != "stdin_bytes" || e.Fields[0].Message != "3" {
		t.Errorf("the mismatch does not tell the offset: %+v", e)
	}
	if n, err := write("\x00\xff", true, &three); n != 5 || err != nil {
		t.Errorf("last write: %d, %v", n, err)
	}
	_, err = write("late", false, nil)
	wantCode(t, err, sandbox.CodeStdinClosed)
	if r := f.attach(id); r.stdout != "abc\x00\xff" || r.exit.StdinBytes != 5 || !r.exit.StdinClosed {
		t.Errorf("%q, %v", r.stdout, r.exit)
	}
	id = f.start(shell("exec sleep 1000"))
	_, err = write("x", false, nil)
	wantCode(t, err, sandbox.CodeStdinClosed)
}

// TestStdinFullPipe: a write to a process that does not read waits as long as the call may last, and says how much
// was accepted; the next write goes on from there. The end of the process ends the wait.
func TestStdinFullPipe(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.start(&agentv1.ProcessSpec{Argv: []string{"sleep", "1000"}, Stdin: true})
	var n uint64
	for n == 0 { // on a busy machine a call may be over before the agent has it; the agent ends one a moment after its caller
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := f.agent.WriteStdin(ctx, connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: make([]byte, 1<<20)}))
		cancel()
		wantCode(t, err, sandbox.CodeDeadline)
		n = f.get(id).StdinBytes
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Data: make([]byte, 1<<20)}))
		done <- err
	}()
	if n >= 1<<20 {
		t.Errorf("%d bytes accepted by a full pipe", n)
	}
	if _, err := f.agent.SignalProcess(t.Context(), connect.NewRequest(&agentv1.SignalProcessRequest{ProcessId: id, Signal: "SIGKILL"})); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, sandbox.CodeStdinClosed)
}

// TestStdinOrder: concurrent writes are not mixed.
func TestStdinOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	id := f.start(&agentv1.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	const size = 200_000
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			_, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{
				ProcessId: id, Data: bytes.Repeat([]byte{byte('a' + i)}, size)}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := f.agent.WriteStdin(t.Context(), connect.NewRequest(&agentv1.WriteStdinRequest{ProcessId: id, Eof: true})); err != nil {
		t.Fatal(err)
	}
	r := f.attach(id)
	if len(r.stdout) != 4*size {
		t.Fatalf("%d bytes", len(r.stdout))
	}
	for i := range 4 {
		if part := r.stdout[i*size : (i+1)*size]; strings.Count(part, part[:1]) != size {
			t.Errorf("part %d is mixed", i)
		}
	}
}
