package confine

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	landlockRead    = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockFile    = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | landlockLaterFile
	landlockDevices = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	landlockLaterFile = unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// LandlockABI returns the version of the kernel's landlock, 0 when there is none. Start with a Landlock fails there.
func LandlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// landlockAll is every access to files that this version knows; all of it is refused unless a rule allows it.
func landlockAll(abi int) uint64 {
	all := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1) // the 13 of version 1
	if abi >= 2 {
		all |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		all |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 5 {
		all |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return all
}

// restrictThread applies l to the calling thread for ever; no_new_privs must be set. Only raw calls: the usual library
// restricts all threads of the process.
func restrictThread(spec *Spec) error {
	abi := LandlockABI()
	if abi == 0 {
		return errors.New("confine: this kernel has no landlock")
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockAll(abi)}
	size := unsafe.Sizeof(attr.Handled_access_fs) // the part that every version knows
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return fmt.Errorf("confine: landlock ruleset: %w", errno)
	}
	defer unix.Close(int(fd))
	rules := ruleset{fd: int(fd), all: attr.Handled_access_fs}
	if err := rules.addSpec(spec); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return fmt.Errorf("confine: landlock: %w", errno)
	}
	return nil
}

type ruleset struct {
	fd  int
	all uint64
}

func (r ruleset) addSpec(spec *Spec) error {
	for _, p := range spec.Landlock.ReadOnly {
		if err := r.addPath(p, landlockRead); err != nil {
			return err
		}
	}
	for _, p := range spec.Landlock.ReadWrite {
		if err := r.addPath(p, r.all); err != nil {
			return err
		}
	}
	if spec.Namespaces.User != nil {
		if err := r.addPath("/proc", landlockRead|unix.LANDLOCK_ACCESS_FS_WRITE_FILE); err != nil {
			return err
		}
	}
	for _, p := range devicePaths(spec) {
		if err := r.addPath(p, landlockDevices); err != nil {
			return err
		}
	}
	for _, f := range spec.Files {
		if err := r.addOpenFile(f); err != nil {
			return err
		}
	}
	return nil
}

func (r ruleset) addPath(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("confine: landlock: %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := r.add(fd, access); err != nil {
		return fmt.Errorf("confine: landlock rule for %s: %w", path, err)
	}
	return nil
}

// add allows access to what the descriptor names. Rights that only directories have are left out for others.
func (r ruleset) add(fd int, access uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access & r.all, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// addOpenFile lets a regular file be opened again as it is open. Others (sockets, pipes, devices) need no rule to be
// used and must not be opened again.
func (r ruleset) addOpenFile(f rawFile) error {
	return control(f, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("confine: landlock: %w", err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return fmt.Errorf("confine: landlock: %w", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil
		}
		access := uint64(unix.LANDLOCK_ACCESS_FS_READ_FILE)
		if flags&unix.O_ACCMODE != unix.O_RDONLY {
			access |= unix.LANDLOCK_ACCESS_FS_WRITE_FILE
		}
		// A file of a memory file system that is not mounted anywhere is beyond landlock's view.
		if err := r.add(fd, access); err != nil && !errors.Is(err, unix.EBADFD) {
			return fmt.Errorf("confine: landlock rule for %s: %w", f.Name(), err)
		}
		return nil
	})
}
