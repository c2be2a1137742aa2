package linuxnet

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onFreshThread runs f on an operating-system thread that is thrown away afterwards, so that f may move it into
// another namespace and no other goroutine ever runs there. The main thread is never used: the runtime cannot end it,
// and /proc/self/ns/net of the whole process is its namespace.
func onFreshThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread together with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // nothing has been changed; give the main thread back
			done <- onFreshThread(f)       // while it is locked here, the next goroutine gets another one
			return
		}
		done <- f()
	}()
	return <-done
}

// inNamespace runs f on a thread inside the network namespace ns.
func inNamespace(ns *os.File, f func() error) error {
	return onFreshThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return f()
	})
}
