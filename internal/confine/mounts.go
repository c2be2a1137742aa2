package confine

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// privateMounts gives the calling thread a private copy of all mounts, with a /dev of its own if devices are asked
// for. The thread's child shares it; it goes with them.
func privateMounts(spec *Spec) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("confine: mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("confine: private mounts: %w", err)
	}
	if spec.Namespaces.Devices == nil {
		return nil
	}
	nodes, err := statDevices(spec)
	if err != nil {
		return err
	}
	if err := unix.Mount("space-dev", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("confine: private /dev: %w", err)
	}
	for _, n := range nodes {
		if err := n.make(); err != nil {
			return err
		}
	}
	return nil
}

type device struct {
	path     string
	mode     uint32
	rdev     uint64
	uid, gid int
}

func harmlessDevices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
}

// devicePaths are those of the private /dev.
func devicePaths(spec *Spec) []string {
	if spec.Namespaces.Devices == nil {
		return nil
	}
	return append(harmlessDevices(), spec.Namespaces.Devices...)
}

// statDevices reads the host's devices before they are covered.
func statDevices(spec *Spec) ([]device, error) {
	var out []device
	for _, p := range devicePaths(spec) {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return nil, fmt.Errorf("confine: device %s: %w", p, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || filepath.Dir(p) != "/dev" {
			return nil, fmt.Errorf("confine: %s is not a character device right in /dev", p)
		}
		out = append(out, device{path: p, mode: unix.S_IFCHR | 0o666, rdev: st.Rdev})
	}
	for i := len(harmlessDevices()); i < len(out); i++ {
		out[i].mode, out[i].uid, out[i].gid = unix.S_IFCHR|0o600, int(spec.UID), int(spec.GID)
	}
	return out, nil
}

func (d device) make() error {
	if err := unix.Mknod(d.path, d.mode, int(d.rdev)); err != nil {
		return fmt.Errorf("confine: device %s: %w", d.path, err)
	}
	if err := unix.Chmod(d.path, d.mode&0o777); err != nil { // not subject to the umask
		return fmt.Errorf("confine: device %s: %w", d.path, err)
	}
	if err := os.Lchown(d.path, d.uid, d.gid); err != nil {
		return fmt.Errorf("confine: device %s: %w", d.path, err)
	}
	return nil
}
