package confine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/failpoint"
)

// Start starts a process. It returns when the program has been loaded; on error nothing is left of it.
func Start(spec Spec) (*Process, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	files, err := dupFiles(&spec)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	pid, err := onOwnThread(func() (int, error) { return startOnThread(&spec, files) })
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.ProcessStarted)
	// It is our child and not reaped, so its pid cannot be another's yet.
	p, err := watchChild(pid, boot, spec)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		var status unix.WaitStatus
		_, _ = unix.Wait4(pid, &status, 0, nil)
		return nil, err
	}
	return p, nil
}

func watchChild(pid int, boot string, spec Spec) (*Process, error) {
	if spec.OOMScore != 0 {
		score := strconv.Itoa(spec.OOMScore)
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(score), 0); err != nil {
			return nil, fmt.Errorf("confine: oom score: %w", err)
		}
	}
	group := spec.Group
	start, _, err := startTime(pid)
	if err != nil {
		return nil, err
	}
	uid, err := uidOf(pid)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("confine: pidfd: %w", err)
	}
	id := Identity{PID: pid, StartTime: start, BootID: boot, UID: uid}
	if group != nil {
		id.Cgroup = group.path
	}
	return watch(id, group, os.NewFile(uintptr(fd), "pidfd")), nil
}

// startOnThread does everything on a thread that is thrown away afterwards, in an order that matters: what needs
// rights comes before what takes them.
func startOnThread(spec *Spec, files []uintptr) (int, error) {
	if err := closeOnExec(); err != nil {
		return 0, err
	}
	if spec.Namespaces.Mount && spec.Namespaces.User == nil {
		if err := privateMounts(spec); err != nil {
			return 0, err
		}
	}
	cgroupFD := -1
	if spec.Group != nil {
		fd, err := spec.Group.enter()
		if err != nil {
			return 0, err
		}
		if fd >= 0 {
			defer unix.Close(fd)
		}
		cgroupFD = fd
	}
	if spec.Namespaces.Bare { // behind the control groups, which lie in what is covered
		if err := coverRoot(spec); err != nil {
			return 0, err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("confine: no_new_privs: %w", err)
	}
	if spec.Landlock != nil {
		if err := restrictThread(spec); err != nil {
			return 0, err
		}
	}
	pid, err := syscall.ForkExec(spec.Path, append([]string{spec.Path}, spec.Args...), procAttr(spec, files, cgroupFD))
	if err != nil {
		return 0, fmt.Errorf("confine: starting %s: %w", spec.Path, err)
	}
	if len(spec.Rlimits) > 0 {
		if err := limitStopped(pid, spec); err != nil {
			return 0, err
		}
	}
	return pid, nil
}

func procAttr(spec *Spec, files []uintptr, cgroupFD int) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true, Cloneflags: cloneFlags(spec.Namespaces)}
	if cgroupFD >= 0 {
		sys.UseCgroupFD, sys.CgroupFD = true, cgroupFD
	}
	if int(spec.UID) != os.Getuid() || int(spec.GID) != os.Getgid() || os.Getuid() == 0 || spec.Namespaces.User != nil {
		sys.Credential = &syscall.Credential{Uid: spec.UID, Gid: spec.GID}
	}
	if u := spec.Namespaces.User; u != nil {
		sys.UidMappings, sys.GidMappings = sysMap(u.UIDs), sysMap(u.GIDs)
		sys.GidMappingsEnableSetgroups = os.Getuid() == 0
	}
	sys.Ptrace = len(spec.Rlimits) > 0 // it stops before its first instruction, for limitStopped
	env := spec.Env
	if env == nil {
		env = []string{}
	}
	dir := spec.Dir
	if dir == "" {
		dir = "/"
	}
	return &syscall.ProcAttr{Dir: dir, Env: env, Files: files, Sys: sys}
}

func cloneFlags(n Namespaces) uintptr {
	var flags uintptr
	for flag, on := range map[uintptr]bool{
		unix.CLONE_NEWNET: n.Net, unix.CLONE_NEWIPC: n.IPC, unix.CLONE_NEWPID: n.PID, unix.CLONE_NEWUSER: n.User != nil,
		// Without a user namespace the thread has made its own mounts already.
		unix.CLONE_NEWNS: n.Mount && n.User != nil,
	} {
		if on {
			flags |= flag
		}
	}
	return flags
}

func sysMap(maps []IDMap) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, 0, len(maps))
	for _, m := range maps {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.Inside), HostID: int(m.Outside), Size: int(m.Size)})
	}
	return out
}

// closeOnExec marks every descriptor of this process, also those it inherited. Those for the child are duplicated
// without the mark by the fork itself.
func closeOnExec() error {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("confine: close on exec: %w", err)
	}
	return nil
}

// enter puts the calling thread into the group's v1 hierarchies, so that its child is born there, and returns a
// descriptor of the v2 group for the fork (-1 without one).
func (g *Group) enter() (int, error) {
	fd := -1
	for _, d := range g.dirs {
		if !d.unified {
			if err := writeFile(d.path, "tasks", strconv.Itoa(unix.Gettid())); err != nil {
				return -1, err
			}
			continue
		}
		var err error
		if fd, err = unix.Open(filepath.Clean(d.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return -1, fmt.Errorf("control group %s: %w", d.path, err)
		}
	}
	return fd, nil
}

// limitStopped sets the limits of a child that waits, traced by this thread, at its first instruction, and lets it go.
// Changing another uid's limits would need CAP_SYS_RESOURCE, which containers rarely have; so the thread, which is
// thrown away anyhow, takes on the child's ids first. On error the child is killed and reaped.
func limitStopped(pid int, spec *Spec) (err error) {
	defer func() {
		if err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			var status unix.WaitStatus
			for _, e := unix.Wait4(pid, &status, 0, nil); e == unix.EINTR; {
				_, e = unix.Wait4(pid, &status, 0, nil)
			}
		}
	}()
	if err := waitStopped(pid); err != nil {
		return err
	}
	if spec.Namespaces.User == nil && os.Getuid() == 0 {
		if err := becomeThread(spec.UID, spec.GID); err != nil {
			return err
		}
	}
	for _, l := range spec.Rlimits {
		lim := unix.Rlimit{Cur: l.Value, Max: l.Value}
		if err := unix.Prlimit(pid, l.Resource, &lim, nil); err != nil {
			return fmt.Errorf("confine: limit %d: %w", l.Resource, err)
		}
	}
	if err := syscall.PtraceDetach(pid); err != nil {
		return fmt.Errorf("confine: continuing: %w", err)
	}
	return nil
}

func waitStopped(pid int) error {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("confine: waiting for the first stop: %w", err)
		}
		if !status.Stopped() {
			return errors.New("confine: the program ended before its first instruction")
		}
		return nil
	}
}

// becomeThread changes the ids of this thread only (the functions of package syscall change all threads).
func becomeThread(uid, gid uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return fmt.Errorf("confine: setresgid: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return fmt.Errorf("confine: setresuid: %w", errno)
	}
	return nil
}
