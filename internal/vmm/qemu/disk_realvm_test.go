//go:build realvm

package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu"
)

// logbook keeps what is logged and tells of a line that contains a text.
type logbook struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  string
	found chan struct{}
	once  sync.Once
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if strings.Contains(l.text.String(), l.want) {
		l.once.Do(func() { close(l.found) })
	}
	return len(p), nil
}

// TestDiskThatFails: when the host cannot write a guest's disk, the guest is stopped instead of being told of errors,
// node's log says so, the guest goes on when there is space again, and the machine can still be ended.
func TestDiskThatFails(t *testing.T) {
	l := newLab(t)
	parts := l.machine(t)
	small := t.TempDir()
	if err := unix.Mount("space-test", small, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	parts.Spec.Disk = l.disk(t, filepath.Join(small, "disk"))
	if err := parts.Spec.Disk.Truncate(512 << 20); err != nil {
		t.Fatal(err)
	}
	book := &logbook{want: "failed to write", found: make(chan struct{})}
	m, err := qemu.New(qemu.Config{Logger: slog.New(slog.NewTextHandler(book, nil))}).Boot(t.Context(), parts.Spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := parts.Hello(bounded(t)); err != nil {
		t.Fatal(err)
	}
	box, err := l.nets.Open(t.Context(), parts.Spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	ctx, cancel := context.WithCancel(bounded(t))
	sent := make(chan error, 1)
	go func() { sent <- l.upload(ctx, box, "/large", 32<<20) }()
	select {
	case <-book.found:
	case <-time.After(patience):
		t.Error("nothing in the log")
	}
	awaitStall(t, m)
	// Without space it stalls again, however often it is told to go on; a pause and another driver do not change that.
	resume(t, m)
	awaitStall(t, m)
	if err := m.Pause(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	adopted, err := qemu.New(qemu.Config{Logger: logger(t)}).Adopt(t.Context(), m.State())
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close()
	m = adopted
	resume(t, m)
	awaitStall(t, m)
	// With space, nothing is lost.
	if err := unix.Mount("space-test", small, "tmpfs", unix.MS_REMOUNT, "size=200m"); err != nil {
		t.Fatal(err)
	}
	resume(t, m)
	if err := <-sent; err != nil {
		t.Errorf("the upload that the full disk held up: %v", err)
	}
	cancel()
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if e, err := m.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the machine has ended: %+v %v", e, err)
	}
	if err := m.Kill(bounded(t)); err != nil {
		t.Error(err)
	}
}

func awaitStall(t *testing.T, m vmm.Machine) {
	t.Helper()
	select {
	case <-m.Stalled():
	case <-time.After(patience):
		t.Error("nobody is told that the guest stands still")
	}
}

func resume(t *testing.T, m vmm.Machine) {
	t.Helper()
	if err := m.Resume(bounded(t)); err != nil {
		t.Errorf("Resume: %v", err)
	}
}

// TestStoppedVMM: a VMM that does nothing any more fails every change in bounded time, obeys late when it comes back, and
// is ended by Kill.
func TestStoppedVMM(t *testing.T) {
	l := newLab(t)
	parts := l.machine(t)
	m, err := l.driver(t).Boot(t.Context(), parts.Spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := parts.Hello(bounded(t)); err != nil {
		t.Fatal(err)
	}
	pid := m.State().Process.PID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.Pause(bounded(t)); sandbox.CodeOf(err) != sandbox.CodeVMMFailed {
		t.Errorf("Pause: %v", err)
	} else {
		t.Log(err)
	}
	if took := time.Since(began); took > vmm.ChangeTime+5*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	resume(t, m) // it may just obey the pause
	if err := parts.Hello(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(bounded(t)); err != nil {
		t.Errorf("Kill: %v", err)
	}
}

// upload writes a file of random-looking bytes into the guest.
func (l *lab) upload(ctx context.Context, box sandboxnet.Box, path string, size int64) error {
	// HTTP/1.1, as the gateway does it: a connection that is asked whether it lives would end while the guest stands still.
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, box) }}}
	defer client.CloseIdleConnections()
	source, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer source.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, rpc.BaseURL+"/files?path="+path, io.LimitReader(source, size))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+l.token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
