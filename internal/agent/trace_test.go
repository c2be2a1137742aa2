package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

// lockedBuffer is a log that several requests write to.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was logged and empties the log.
func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

// noName is a machine that cannot be given a name.
type noName struct{ Machine }

func (noName) SetHostname(string) error { return errors.New("this machine has no name") }

// TestTrace: what is logged for a request names its trace; what is no trace is not repeated.
func TestTrace(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	log := &lockedBuffer{}
	f := newFixture(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	generation := int64(0)
	initialize := func(f *fixture, header string) error {
		generation++
		req := connect.NewRequest(&agentv1.InitRequest{Generation: generation, Hostname: "box", WallTime: timestamppb.Now(), Entropy: make([]byte, 64)})
		req.Header().Set("Traceparent", header)
		_, err := f.agent.Init(t.Context(), req)
		return err
	}
	if err := initialize(f, "00-"+id+"-00f067aa0ba902b7-01"); err != nil {
		t.Fatal(err)
	}
	if got := log.take(); !strings.Contains(got, "the machine has its identity") || !strings.Contains(got, "trace_id="+id+"\n") {
		t.Errorf("logged: %s", got)
	}
	for _, header := range []string{"", "nonsense", "00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01", "00-" + id + "-00f067aa0ba902b7-01x", id} {
		if err := initialize(f, header); err != nil {
			t.Fatal(err)
		}
		if got := log.take(); !strings.Contains(got, "the machine has its identity") || strings.Contains(got, "trace_id") {
			t.Errorf("with %q logged: %s", header, got)
		}
	}
	broken := newFixture(t, func(c *Config) { c.Logger, c.Machine = slog.New(slog.NewTextHandler(log, nil)), noName{c.Machine} })
	if err := initialize(broken, "00-"+id+"-00f067aa0ba902b7-01"); err == nil {
		t.Fatal("no error")
	}
	if got := log.take(); !strings.Contains(got, "a call failed") || !strings.Contains(got, "this machine has no name") || !strings.Contains(got, "trace_id="+id) {
		t.Errorf("logged: %s", got)
	}
}
