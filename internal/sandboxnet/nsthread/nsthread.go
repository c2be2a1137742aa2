// Package nsthread runs code in another network namespace, on an operating-system thread that is thrown away
// afterwards, so that no other goroutine ever runs there by accident.
package nsthread

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread of its own, which f may move into other namespaces. Processes that f starts inherit them;
// goroutines do not. f must not be the process's first use of package net, which finds out once what the network can
// do and would judge by that namespace. The main thread is never used: the runtime cannot end it, and /proc/self/ns of the whole process
// is what the main thread is in.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread together with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // nothing has been changed; give the main thread back
			done <- Run(f)                 // while it is locked here, the next goroutine gets another one
			return
		}
		done <- f()
	}()
	return <-done
}

// In runs f on a thread of its own inside the network namespace ns.
func In(ns *os.File, f func() error) error {
	return Run(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}

// New makes an empty network namespace that lives as long as the returned descriptor, a process or a mount in it.
func New() (*os.File, error) {
	var ns *os.File
	err := Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		var err error
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}
