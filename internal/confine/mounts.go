package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	if err := dropForeignMounts(spec.Path); err != nil {
		return err
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

// dropForeignMounts takes kept namespaces and loop devices out of a private copy of all mounts, except what program is
// on. The copy would keep them alive for as long as the child lives: networks of sandboxes that are deleted, pools of
// other installations that are unmounted.
func dropForeignMounts(program string) error {
	mounts, err := os.ReadFile("/proc/thread-self/mounts")
	if err != nil {
		return fmt.Errorf("confine: mounts: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(mounts)), "\n")
	for _, line := range slices.Backward(lines) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "nsfs" && !strings.HasPrefix(fields[0], "/dev/loop") {
			continue
		}
		point := unescapeMount(fields[1])
		if point == "/" || strings.HasPrefix(program, point+"/") || strings.HasPrefix(point, "/usr") {
			continue
		}
		// One that has gone meanwhile, or lies under another, is no error: it only stays.
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("confine: drop mount %s: %w", point, err)
		}
	}
	return nil
}

// unescapeMount undoes how the kernel writes a path in the table of mounts.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
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
