// Package part runs one of the three processes of an installation: it takes the sockets that space up made, wires
// the rooms together and serves until the lifeline ends.
package part

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// The names of the parts, as they show in ps.
const (
	Control = "control"
	Node    = "node"
	Gateway = "gateway"
)

// ExitHopeless is the exit code of a part that another start cannot help: something has to be mended first.
const ExitHopeless = 78

// Hopeless reports whether err stays until somebody mends the host, the installation or the command line.
func Hopeless(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeHostSetup, sandbox.CodeDriverUnavailable, sandbox.CodeInvalidArgument:
		return true
	}
	return false
}

// Descriptors that space up passes: the lifeline, then the part's listening sockets.
const (
	lifelineFD = 3
	firstFD    = 4
)

// Start prepares the process: no new privileges, a name for ps, and a context that ends with the lifeline. It fails
// when the process was not started by space up.
func Start(ctx context.Context, name string) (context.Context, error) {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
		return nil, noNewPrivsError(errno)
	}
	if err := os.WriteFile("/proc/self/comm", []byte("space-"+name), 0); err != nil {
		return nil, fmt.Errorf("set process name: %w", err)
	}
	if !Started() {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: fmt.Sprintf("space %s is a part of space up", name),
			Cause: "it was started by hand", Remedy: "run space up; space node info shows the machine"}
	}
	unix.CloseOnExec(lifelineFD) // nothing that a part starts may hold it
	life := os.NewFile(lifelineFD, "lifeline")
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		defer life.Close()
		var b [1]byte
		_, _ = life.Read(b[:]) // returns when up has closed its end, or is dead
	}()
	return ctx, nil
}

func noNewPrivsError(errno syscall.Errno) error {
	if errno == unix.ENOTSUP { // AllThreadsSyscall does not know the threads of C code
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "this program cannot give up privileges in all its threads",
			Cause: "it was built with cgo", Remedy: "build it with make build, which sets CGO_ENABLED=0"}
	}
	return fmt.Errorf("no_new_privs: %w", errno)
}

// Started reports whether space up started this process, by the lifeline that it passes.
func Started() bool {
	var st unix.Stat_t
	return unix.Fstat(lifelineFD, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// listener takes the i-th passed socket.
func listener(i int) (net.Listener, error) {
	f := os.NewFile(uintptr(firstFD+i), "listener")
	if f == nil {
		return nil, errors.New("a listening socket is missing")
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("listening socket %d: %w", i, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the socket belongs to space up
	}
	return l, nil
}
