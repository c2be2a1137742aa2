package fake_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/fake"
	"github.com/space-sandbox/space/internal/sandboxnet/netboxtest"
)

func newManager(t *testing.T, dir string, socket func(sandbox.ID) string) *fake.Manager {
	t.Helper()
	m, err := fake.New(fake.Config{Dir: dir, SocketPath: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func noSocket(sandbox.ID) string { return "/nonexistent/agent.sock" }

func TestSuite(t *testing.T) {
	t.Parallel()
	netboxtest.Run(t, func(t *testing.T) netboxtest.Driver {
		here, other := t.TempDir(), t.TempDir()
		return netboxtest.Driver{
			New:      func(t *testing.T) sandboxnet.Manager { return newManager(t, here, noSocket) },
			NewOther: func(t *testing.T) sandboxnet.Manager { return newManager(t, other, noSocket) },
		}
	})
}

func TestAgentSocketIsConnected(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "fakenet") // short: a socket path has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()

	m := newManager(t, t.TempDir(), func(sandbox.ID) string { return path })
	box, err := m.Create(t.Context(), sandbox.NewID())
	if err != nil {
		t.Fatal(err)
	}
	sock, err := box.AgentSocket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sock.File.Close()
	if !sock.Connected {
		t.Error("Connected = false")
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	conn, err := net.FileConn(sock.File)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestWithoutAgentOrTap(t *testing.T) {
	t.Parallel()
	m := newManager(t, t.TempDir(), noSocket)
	box, err := m.Create(t.Context(), sandbox.NewID())
	if err != nil {
		t.Fatal(err)
	}
	if s, err := box.AgentSocket(t.Context()); sandbox.CodeOf(err) != sandbox.CodeGuestNotReady {
		t.Errorf("AgentSocket without an agent: %v, %v", s, err)
	}
	if f, err := box.Tap(t.Context()); err == nil {
		f.Close()
		t.Error("Tap of a fake box succeeded")
	}
}
