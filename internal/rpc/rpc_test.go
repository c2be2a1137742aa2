package rpc_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/api/proto/node/v1/nodev1connect"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

type failing struct {
	nodev1connect.UnimplementedNodeServiceHandler
	err error
}

func (f failing) GetNode(context.Context, *connect.Request[nodev1.GetNodeRequest]) (*connect.Response[nodev1.GetNodeResponse], error) {
	return nil, f.err
}

func (f failing) WatchMachines(_ context.Context, _ *connect.Request[nodev1.WatchMachinesRequest], s *connect.ServerStream[nodev1.WatchMachinesResponse]) error {
	if err := s.Send(&nodev1.WatchMachinesResponse{Event: &nodev1.WatchMachinesResponse_Synced{Synced: true}}); err != nil {
		return err
	}
	return f.err
}

func serve(t *testing.T, err error) nodev1connect.NodeServiceClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, lerr := rpc.Listen("unix", path, -1)
	if lerr != nil {
		t.Fatal(lerr)
	}
	mux := http.NewServeMux()
	mux.Handle(nodev1connect.NewNodeServiceHandler(failing{err: err}, connect.WithInterceptors(rpc.Errors())))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, mux) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	hc := rpc.HTTPClient(rpc.DialUnix(path))
	t.Cleanup(hc.CloseIdleConnections)
	return nodev1connect.NewNodeServiceClient(hc, rpc.BaseURL, connect.WithInterceptors(rpc.Errors()))
}

// TestErrorsKeepTheirForm sends an error of the house through a real socket, unary and streamed.
func TestErrorsKeepTheirForm(t *testing.T) {
	t.Parallel()
	want := &sandbox.Error{Code: sandbox.CodePoolFull, Message: "no room", Cause: "12 MiB left", Remedy: "delete something",
		Fields: []sandbox.FieldError{{Field: "disk_mib", Message: "too much"}}}
	c := serve(t, want)
	_, err := c.GetNode(t.Context(), connect.NewRequest(&nodev1.GetNodeRequest{}))
	var got *sandbox.Error
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want a *sandbox.Error", err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("unary (-want +got):\n%s", d)
	}
	s, err := c.WatchMachines(t.Context(), connect.NewRequest(&nodev1.WatchMachinesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() {
		t.Fatalf("no first event: %v", s.Err())
	}
	if s.Receive() {
		t.Fatal("an event after the end")
	}
	if d := cmp.Diff(want, rpc.FromConnect(s.Err())); d != "" {
		t.Errorf("stream (-want +got):\n%s", d)
	}
}

// TestErrorsOfCallsFurtherOnKeepTheirForm: what a part says about a call it made is what its caller hears.
func TestErrorsOfCallsFurtherOnKeepTheirForm(t *testing.T) {
	t.Parallel()
	c := serve(t, &sandbox.Error{Code: sandbox.CodeGuestNotReady, Message: "too slow", Cause: "guest",
		Err: connect.NewError(connect.CodeResourceExhausted, errors.New("from further on"))})
	_, err := c.GetNode(t.Context(), connect.NewRequest(&nodev1.GetNodeRequest{}))
	if got := sandbox.CodeOf(err); got != sandbox.CodeGuestNotReady {
		t.Errorf("code %q (%v), want guest_not_ready", got, err)
	}
}

// TestAbsentServerIsUnavailable: the other process is down, so the caller may try again.
func TestAbsentServerIsUnavailable(t *testing.T) {
	t.Parallel()
	hc := rpc.HTTPClient(rpc.DialUnix(filepath.Join(t.TempDir(), "none")))
	c := nodev1connect.NewNodeServiceClient(hc, rpc.BaseURL, connect.WithInterceptors(rpc.Errors()))
	_, err := c.GetNode(t.Context(), connect.NewRequest(&nodev1.GetNodeRequest{}))
	if got := sandbox.CodeOf(err); got != sandbox.CodeUnavailable {
		t.Errorf("code %q (%v), want unavailable", got, err)
	}
}

// TestRestrictRefusesOtherUIDs connects from a thread of another uid: the listener drops it and serves the next peer.
func TestRestrictRefusesOtherUIDs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test changes its uid and needs root")
	}
	dir, err := os.MkdirTemp("", "rpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	made, err := rpc.Listen("unix", path, -1)
	if err != nil {
		t.Fatal(err)
	}
	l := rpc.Restrict(made, 65533)
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan uint32, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if cred, err := rpc.PeerCred(c.(*net.UnixConn)); err == nil {
			accepted <- cred.Uid
		}
	}()
	for _, uid := range []int{65534, 65533} {
		if err := connectAs(uid, path); err != nil {
			t.Fatalf("connect as %d: %v", uid, err)
		}
	}
	if got := <-accepted; got != 65533 {
		t.Errorf("accepted uid %d, want 65533 only", got)
	}
}

// connectAs connects from a thread whose uid is changed; the thread is thrown away.
func connectAs(uid int, path string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		defer unix.Close(fd)
		done <- unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}()
	return <-done
}
