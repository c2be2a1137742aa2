package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

// Why a process could not be started, as Process.error_code says it.
const (
	startCommandNotFound  = "command_not_found"
	startCwdNotFound      = "cwd_not_found"
	startUserNotFound     = "user_not_found"
	startPermissionDenied = "permission_denied"
	startFailed           = "start_failed"
)

// startError says why a process could not be started.
type startError struct {
	code    string
	message string
}

func (e *startError) Error() string { return e.message }

func startErrorf(code, format string, args ...any) error {
	return &startError{code: code, message: fmt.Sprintf(format, args...)}
}

// plan is everything the kernel is asked to do for one process.
type plan struct {
	account account
	program string
	argv    []string
	env     []string
	cwd     string
	stdin   bool
	size    *agentv1.TerminalSize // nil without a terminal
	timeout time.Duration
}

// prepare resolves user, working directory and program, the latter two with that user's eyes.
func (t *table) prepare(spec *agentv1.ProcessSpec) (plan, error) {
	a, err := t.users.lookup(spec.User)
	switch {
	case errors.Is(err, errUserUnknown):
		return plan{}, startErrorf(startUserNotFound, "%s", err)
	case errors.Is(err, errUserRefused):
		return plan{}, startErrorf(startPermissionDenied, "%s", err)
	case err != nil:
		return plan{}, startErrorf(startFailed, "%s", err)
	}
	pl := plan{account: a, argv: spec.Argv, env: environment(spec, a), cwd: a.homeDir(),
		stdin: spec.Stdin, timeout: timeoutOf(spec)}
	if path.IsAbs(spec.Cwd) {
		pl.cwd = spec.Cwd
	} else if spec.Cwd != "" {
		pl.cwd += "/" + spec.Cwd
	}
	searchPath, ok := spec.Env["PATH"]
	if !ok {
		searchPath = defaultPath
	}
	err = asUser(a, func() (err error) {
		if err := enterable(pl.cwd); err != nil {
			return cwdError(pl.cwd, err)
		}
		if pl.program, err = findProgram(spec.Argv[0], pl.cwd, searchPath); err != nil {
			return programError(spec.Argv[0], err)
		}
		return nil
	})
	return pl, err
}

func cwdError(cwd string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return startErrorf(startPermissionDenied, "the user may not enter the working directory %.200q", cwd)
	}
	return startErrorf(startCwdNotFound, "the working directory %.200q does not exist: %s", cwd, err)
}

func programError(argv0 string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return startErrorf(startPermissionDenied, "the user may not execute %.200q", argv0)
	}
	return startErrorf(startCommandNotFound, "there is no program %.200q: %s", argv0, err)
}

// spawnError explains what the kernel said to the start of an existing program.
func spawnError(argv0 string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return startErrorf(startPermissionDenied, "starting %.200q is not permitted: %s", argv0, err)
	case errors.Is(err, unix.ENOENT):
		return startErrorf(startFailed, "the interpreter or loader that %.200q names does not exist", argv0)
	case errors.Is(err, unix.ENOEXEC):
		return startErrorf(startFailed, "%.200q is neither a program of this machine nor a script with a #! line", argv0)
	case errors.Is(err, unix.E2BIG):
		return startErrorf(startFailed, "argv and env are larger than the kernel takes")
	}
	return startErrorf(startFailed, "%.200q could not be started: %s", argv0, err)
}

// pipes are the ends of a process's standard streams: three for the child, up to three for us.
type pipes struct {
	child          [3]int
	stdin          *os.File // nil without one
	stdout, stderr *os.File // nil with a terminal
	terminal       *os.File // nil without one
}

// outputs are our ends that are read, by the stream they are.
func (p *pipes) outputs() map[int]*os.File {
	if p.terminal != nil {
		return map[int]*os.File{ptyStream: p.terminal}
	}
	return map[int]*os.File{stdoutStream: p.stdout, stderrStream: p.stderr}
}

// openPipes makes the streams. On error nothing stays open.
func openPipes(withStdin bool) (p pipes, err error) {
	p.child = [3]int{-1, -1, -1}
	defer func() {
		if err != nil {
			p.closeAll()
		}
	}()
	if withStdin {
		p.child[0], p.stdin, err = halfPipe(false)
	} else {
		p.child[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return p, fmt.Errorf("standard input: %w", err)
	}
	if p.child[1], p.stdout, err = halfPipe(true); err != nil {
		return p, fmt.Errorf("standard output: %w", err)
	}
	if p.child[2], p.stderr, err = halfPipe(true); err != nil {
		return p, fmt.Errorf("standard error: %w", err)
	}
	return p, nil
}

// halfPipe makes a pipe whose one end is for a child and whose other end, non-blocking, is ours: the read end when
// we read.
func halfPipe(weRead bool) (child int, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	our, child := fds[1], fds[0]
	if weRead {
		our, child = fds[0], fds[1]
	}
	if err := unix.SetNonblock(our, true); err != nil {
		_ = unix.Close(our)
		_ = unix.Close(child)
		return -1, nil, err
	}
	return child, os.NewFile(uintptr(our), "pipe"), nil
}

// closeChild closes what the child has got.
func (p *pipes) closeChild() {
	for i, fd := range p.child {
		if fd >= 0 {
			_ = unix.Close(fd)
			p.child[i] = -1
		}
	}
}

func (p *pipes) closeAll() {
	p.closeChild()
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.terminal} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// spawn starts the program of a plan in a session, process group and control group of its own.
func (t *table) spawn(pl plan, ended func(Exit)) (pid int, p pipes, err error) {
	if pl.size != nil {
		p, err = openTerminal(pl.size, pl.account.uid)
	} else {
		p, err = openPipes(pl.stdin)
	}
	if err != nil {
		return 0, p, startErrorf(startFailed, "%s", err)
	}
	// With a terminal its other side stays open here, so that a program which closes all of its own can open it again.
	defer func() {
		if err != nil || pl.size == nil {
			p.closeChild()
		}
	}()
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: pl.size != nil} // its standard input is the one to control it
	if privileged() {
		sys.Credential = &syscall.Credential{Uid: uint32(pl.account.uid), Gid: uint32(pl.account.gid)}
		for _, g := range pl.account.groups {
			sys.Credential.Groups = append(sys.Credential.Groups, uint32(g))
		}
	}
	if fd := t.userGroup(); fd >= 0 {
		sys.UseCgroupFD, sys.CgroupFD = true, fd
	}
	attr := &syscall.ProcAttr{Dir: pl.cwd, Env: pl.env, Sys: sys,
		Files: []uintptr{uintptr(p.child[0]), uintptr(p.child[1]), uintptr(p.child[2])}}
	pid, err = t.reaper.Start(pl.program, pl.argv, attr, ended)
	if err != nil {
		p.closeAll()
		return 0, p, spawnError(pl.argv[0], err)
	}
	return pid, p, nil
}
