package agent

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asUser runs fn on a thread that is the user a as far as the kernel's checks go: effective uid and gid (and with
// them the file system ids), supplementary groups, and no effective capabilities. Permissions and the ownership of
// new files are then the kernel's decision. The real and saved uid stay root, so that processes of that user cannot
// signal or trace the thread.
//
// The thread ends afterwards: it never serves anybody else. Goroutines that fn starts run as the agent.
func asUser(a account, fn func() error) error {
	if !privileged() || a.uid == 0 && a.gid == 0 {
		return fn()
	}
	done := make(chan error, 1)
	go func() { done <- onOwnThread(a, fn) }()
	return <-done
}

// onOwnThread is the body of asUser's goroutine. It leaves the goroutine locked to its thread, which is how the Go
// runtime is told to end the thread with it. The main thread cannot end, so it is not used.
func onOwnThread(a account, fn func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		done := make(chan error, 1)
		go func() { done <- onOwnThread(a, fn) }()
		err := <-done
		runtime.UnlockOSThread()
		return err
	}
	if err := becomeUser(a); err != nil {
		return err
	}
	return guarded(fn)
}

// guarded makes a panic of fn an error: on a goroutine of its own it would end the agent, and with it the machine.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return fn()
}

// becomeUser changes the credentials of the calling thread alone: raw system calls, because the functions of package
// syscall change all threads.
func becomeUser(a account) error {
	groups := make([]uint32, 0, len(a.groups)+1)
	for _, g := range a.groups {
		groups = append(groups, uint32(g))
	}
	if len(groups) == 0 {
		groups = append(groups, uint32(a.gid))
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); e != 0 {
		return fmt.Errorf("become user %s: set groups: %w", a.name, e)
	}
	const unchanged = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, unchanged, uintptr(a.gid), unchanged); e != 0 {
		return fmt.Errorf("become user %s: set gid: %w", a.name, e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, unchanged, uintptr(a.uid), unchanged); e != 0 {
		return fmt.Errorf("become user %s: set uid: %w", a.name, e)
	}
	return nil
}
