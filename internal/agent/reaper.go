package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Exit is how a process ended: by itself with a code, or by a signal.
type Exit struct {
	Code   int
	Signal syscall.Signal // 0 when it ended by itself
}

// Reaper starts processes and tells how they ended. Only one may collect children in a process, because a wait for
// any child would take the statuses of the others' children. Safe for concurrent use.
type Reaper interface {
	// Start starts a program as syscall.ForkExec does. Then ended is called exactly once, while the process is
	// still a zombie: its pid cannot belong to another process until ended returns. It is called from another
	// goroutine, possibly before Start returns, and does not block. When Start fails, ended is never called.
	Start(path string, argv []string, attr *syscall.ProcAttr, ended func(Exit)) (pid int, err error)
}

// ChildReaper is the Reaper of an ordinary process: it waits for each child it started and for no other.
type ChildReaper struct{}

// Start implements Reaper.
func (ChildReaper) Start(path string, argv []string, attr *syscall.ProcAttr, ended func(Exit)) (int, error) {
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	go func() {
		_, exit, err := PeekExit(unix.P_PID, pid)
		if err != nil { // somebody else collected it: its status is unknown
			exit = Exit{Code: -1}
		}
		ended(exit)
		_ = Collect(pid)
	}()
	return pid, nil
}

// PeekExit blocks until a child has ended (which: see waitid(2); unix.P_ALL and 0 for any) and leaves it a zombie.
func PeekExit(idType, id int) (pid int, exit Exit, err error) {
	var info unix.Siginfo
	for {
		err = unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, Exit{}, fmt.Errorf("wait for a child: %w", err)
	}
	// struct siginfo of SIGCHLD on 64-bit Linux: si_pid at byte 16, si_uid at 20, si_status at 24.
	raw := (*[32]byte)(unsafe.Pointer(&info))
	pid = int(int32(binary.NativeEndian.Uint32(raw[16:])))
	status := int(int32(binary.NativeEndian.Uint32(raw[24:])))
	const cldExited = 1
	if info.Code == cldExited {
		return pid, Exit{Code: status}, nil
	}
	return pid, Exit{Code: -1, Signal: syscall.Signal(status)}, nil
}

// Collect ends the zombie pid, whose exit PeekExit has told.
func Collect(pid int) error {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("collect child %d: %w", pid, err)
		}
		return nil
	}
}
