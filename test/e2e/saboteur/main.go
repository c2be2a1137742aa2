// Command saboteur is what a hostile root runs inside a sandbox: the first argument says which damage it does. Called
// by the name of a shell it prints without end.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	if name := filepath.Base(os.Args[0]); name == "sh" || name == "bash" {
		for {
			if _, err := os.Stdout.WriteString("no shell here\n"); err != nil {
				return
			}
		}
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "saboteur:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: saboteur hog|trace|lie|unmount|inodes|reboot")
	}
	switch args[0] {
	case "hog":
		return hog()
	case "trace":
		return trace()
	case "lie":
		return lie()
	case "unmount":
		return unmount()
	case "inodes":
		return inodes()
	case "reboot":
		return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}
	return fmt.Errorf("no damage is called %q", args[0])
}

// hog leaves the control group of user processes and takes all memory.
func hog() error {
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.procs", []byte("0"), 0); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		return err
	}
	var all [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
		runtime.KeepAlive(all)
	}
}

// trace stops all threads of PID 1 as a debugger would, and keeps them stopped.
func trace() error {
	runtime.LockOSThread()
	threads, err := os.ReadDir("/proc/1/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		err = unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // a thread may have ended
			return fmt.Errorf("thread %d: %w", tid, err)
		}
	}
	for {
		_ = unix.Pause() // each thread that stops is a signal
	}
}

// unmount takes away what the agent works with.
func unmount() error {
	for _, path := range []string{"/dev/shm", "/dev/pts", "/sys/fs/cgroup", "/sys", "/proc"} {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return unix.Mount("none", "/dev", "tmpfs", 0, "")
}

// inodes uses all inodes of the file system of the working directory, and no block.
func inodes() error {
	for n := 0; ; n++ {
		err := unix.Mkfifo(strconv.Itoa(n), 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
