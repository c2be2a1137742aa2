package template

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// tailBytes is how much of a failed program's output an error shows.
const tailBytes = 2048

// runChild runs cmd to its end, in a process group that dies with the context and with our own death. Each line of its
// output goes to line (nil to drop them).
func runChild(cmd *exec.Cmd, line func(string)) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.Cancel != nil { // made by CommandContext
		cmd.Cancel = func() error { return killGroup(cmd) }
	}
	// Grandchildren that keep the output open are in the group too; this bounds waiting for them.
	cmd.WaitDelay = 10 * time.Second
	out := &outputTail{line: line}
	cmd.Stdout, cmd.Stderr = out, out

	// The kernel sends the death signal when the thread that forked ends, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	if err := cmd.Wait(); err != nil {
		return &childError{program: cmd.Args[0], output: out.String(), err: err}
	}
	return nil
}

func killGroup(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// childError is a program that ended badly, with the end of its output.
type childError struct {
	program string
	output  string
	err     error
}

func (e *childError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.program, e.err, strings.ReplaceAll(strings.TrimSpace(e.output), "\n", "; "))
}

func (e *childError) Unwrap() error { return e.err }

// outputTail keeps the end of what a program wrote and passes whole lines on. Used by one goroutine at a time: exec
// copies stdout and stderr through one pipe when both are the same writer.
type outputTail struct {
	line    func(string)
	partial []byte
	tail    []byte
}

func (o *outputTail) Write(p []byte) (int, error) {
	o.tail = append(o.tail, p...)
	if len(o.tail) > tailBytes {
		o.tail = bytes.Clone(o.tail[len(o.tail)-tailBytes:])
	}
	if o.line == nil {
		return len(p), nil
	}
	o.partial = append(o.partial, p...)
	for {
		i := bytes.IndexAny(o.partial, "\r\n")
		if i < 0 {
			break
		}
		o.line(string(o.partial[:i]))
		o.partial = o.partial[i+1:]
	}
	if len(o.partial) > bufio.MaxScanTokenSize {
		o.partial = nil
	}
	return len(p), nil
}

func (o *outputTail) String() string { return strings.ToValidUTF8(string(o.tail), "?") }

var _ io.Writer = (*outputTail)(nil)

// inNewRoot is a command inside a finished root file system. It is Debian's own content, not a tenant's.
func inNewRoot(ctx context.Context, root string, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + userPath, "LC_ALL=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	return cmd
}

// outOfSpace reports whether mke2fs said that the image is too small for its content.
func (e *childError) outOfSpace() bool {
	return strings.Contains(e.output, "Could not allocate block") || strings.Contains(e.output, "Could not allocate inode") ||
		strings.Contains(e.output, "No free space") || strings.Contains(e.output, "not enough space")
}
