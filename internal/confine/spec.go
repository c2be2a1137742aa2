package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Spec says what to start and within which bounds. no_new_privs, a session of its own and an empty list of
// supplementary groups are not options: every process has them. It holds no descriptor but Files and the three
// standard ones.
type Spec struct {
	Path string   // absolute path of the program
	Args []string // what follows argv[0]
	Env  []string // the whole environment, KEY=value; nil is an empty one
	Dir  string   // working directory; "" is /

	// Files become descriptors 3, 4, … of the process, which shares their offsets and flags. They stay the caller's.
	Files []*os.File
	// Stdin, Stdout and Stderr; nil is /dev/null. A process that shall outlive us must not hold a pipe of ours.
	Stdin, Stdout, Stderr *os.File

	// UID and GID the process runs as; with Namespaces.User they are numbers inside that namespace.
	UID, GID uint32

	Namespaces Namespaces
	Group      *Group    // control group it starts in; nil: the caller's
	Landlock   *Landlock // which files it may open; nil: no such restriction
	Rlimits    []Rlimit
	// OOMScore, 0 to 1000, says how much sooner than others the process is ended when the host has no memory left.
	OOMScore int
}

// Namespaces are the kernel namespaces made new, and empty, for the process.
type Namespaces struct {
	Net bool // no interface but a loopback that is down
	IPC bool
	PID bool
	// Mount is a private copy of the mounts: later ones of the host do not appear in it.
	Mount bool
	// Devices, with Mount and without User, replaces /dev by a small private file system with the harmless devices
	// (null, zero, full, random, urandom) and copies of these paths, owned by UID and GID. Nil leaves /dev as it is;
	// an empty list does not.
	Devices []string
	// Bare, with Mount and without User, covers every directory of / that has nothing the process needs with an empty
	// one that cannot be written: it leaves those of the program, of Landlock and of Dir, /dev and /proc. Landlock does
	// not keep a process from sockets of the host's services (D-Bus, a container engine); this does.
	Bare bool
	// User is a user namespace of its own; nil for none.
	User *UserNamespace
}

// UserNamespace maps ids inside to ids outside.
type UserNamespace struct {
	UIDs, GIDs []IDMap
}

// IDMap maps Size ids from Inside on to those from Outside on.
type IDMap struct {
	Inside, Outside, Size uint32
}

// Landlock lists what may be opened by path; nothing else can be. Regular files among Spec.Files may be opened again
// through /proc/self/fd with the access they are open for. Paths that do not exist are passed over. With a user
// namespace /proc stays writable too, as far as ordinary permissions go: its id maps are written through it.
type Landlock struct {
	ReadOnly  []string // files, or directories with all below: read and execute
	ReadWrite []string
}

// Rlimit bounds a resource, hard and soft alike, from the program's first instruction on.
type Rlimit struct {
	Resource int // unix.RLIMIT_CORE …
	Value    uint64
}

func (s *Spec) check() error {
	switch {
	case !filepath.IsAbs(s.Path):
		return fmt.Errorf("confine: path %q is not absolute", s.Path)
	case s.OOMScore < 0 || s.OOMScore > 1000:
		return fmt.Errorf("confine: OOM score %d", s.OOMScore)
	case s.Dir != "" && !filepath.IsAbs(s.Dir):
		return fmt.Errorf("confine: directory %q is not absolute", s.Dir)
	case s.Namespaces.Devices != nil && (!s.Namespaces.Mount || s.Namespaces.User != nil):
		return errors.New("confine: devices need a mount namespace and no user namespace")
	case s.Namespaces.Bare && (!s.Namespaces.Mount || s.Namespaces.User != nil):
		return errors.New("confine: a bare root needs a mount namespace and no user namespace")
	}
	return nil
}
