package qemu

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/space-sandbox/space/internal/confine"
)

// Whoever else listens on the control socket's path is not talked to.
func TestPeerMustBeTheMachine(t *testing.T) {
	t.Parallel()
	proc, err := confine.Start(confine.Spec{Path: "/bin/sleep", Args: []string{"600"}, UID: 61242, GID: 61242})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), SocketName)
	m := newMachine(proc, private{Socket: socket}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := m.Kill(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		m.Close()
	})
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = conn.Write([]byte(`{"QMP": {}}` + "\n"))
			conn.Close()
		}
		accepted <- err
	}()
	if conn, err := m.dial(t.Context()); err == nil {
		conn.Close()
		t.Error("talked to a stranger")
	}
	<-accepted
}
