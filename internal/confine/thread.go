package confine

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on an OS thread that nothing else runs on before or after: the runtime ends a thread whose
// goroutine ends without unlocking it, and never clones new threads from a locked one. f may do to the thread what
// cannot be undone.
func onOwnThread[T any](f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread would only be parked, not ended, and it stands for the whole process in /proc. Keep it
			// busy until another goroutine, which then must be on another thread, is done.
			locked := make(chan struct{})
			go func() { run(); close(locked) }()
			<-locked
			runtime.UnlockOSThread()
			return
		}
		value, err := f()
		results <- result{value, err}
	}
	go run()
	r := <-results
	return r.value, r.err
}
