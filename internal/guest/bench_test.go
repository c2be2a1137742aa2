package guest_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"testing"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/guest"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

func benchClient(b *testing.B) *guest.Client {
	b.Helper()
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s, err := agent.New(agent.Config{Token: token, Machine: quietMachine{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(b.Context(), l, s.Handler()) }()
	c := guest.NewClient(guest.Config{Dial: rpc.DialUnix(path), Token: token})
	b.Cleanup(func() { s.Close(); c.Close(); <-done })
	return c
}

// BenchmarkCommand is one short command from its creation to its exit.
func BenchmarkCommand(b *testing.B) {
	c := benchClient(b)
	for b.Loop() {
		runToEnd(b, c, &agentv1.ProcessSpec{Argv: []string{"true"}})
	}
}

// BenchmarkOutput is 64 MiB of output read as fast as it comes.
func BenchmarkOutput(b *testing.B) {
	c := benchClient(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if n := runToEnd(b, c, &agentv1.ProcessSpec{Argv: []string{"head", "-c", "67108864", "/dev/zero"}}); n != 64<<20 {
			b.Fatalf("%d bytes", n)
		}
	}
}

func runToEnd(b *testing.B, c *guest.Client, spec *agentv1.ProcessSpec) (n int) {
	b.Helper()
	id := sandbox.NewProcessID()
	if _, err := c.CreateProcess(b.Context(), id, spec); err != nil {
		b.Fatal(err)
	}
	a, err := c.Attach(b.Context(), &agentv1.AttachRequest{ProcessId: string(id), Start: true, Follow: true, Positions: outputs()})
	for err == nil {
		var e *agentv1.AttachResponse
		e, err = a.Receive()
		n += len(e.GetData().GetData())
	}
	if !errors.Is(err, io.EOF) {
		b.Fatal(err)
	}
	return n
}

// BenchmarkFiles stores and reads back 16 MiB.
func BenchmarkFiles(b *testing.B) {
	c := benchClient(b)
	content := make([]byte, 16<<20)
	query := url.Values{"path": {filepath.Join(b.TempDir(), "file")}}
	b.SetBytes(2 * int64(len(content)))
	for b.Loop() {
		if _, err := c.PutFile(b.Context(), query, bytes.NewReader(content), int64(len(content))); err != nil {
			b.Fatal(err)
		}
		f, err := c.GetFile(b.Context(), query, "")
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, f.Body); err != nil || n != int64(len(content)) {
			b.Fatal(n, err)
		}
		f.Body.Close()
	}
}
