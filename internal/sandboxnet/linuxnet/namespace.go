package linuxnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// errNotNamespace says that a file under mountDir has no network namespace on it: what a crash between making the
// file and mounting leaves.
var errNotNamespace = errors.New("the file is not a network namespace")

// build moves the calling thread into a new namespace, furnishes it and mounts it at path. The order is the promise:
// kernel settings, the link while it is down, the rules, then the link up, and only then the name.
func (m *Manager) build(ctx context.Context, path string) (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	if err := applySettings(settings()); err != nil {
		return nil, err
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	defer nl.Close()
	link, err := makeTap(nl)
	if err != nil {
		return nil, err
	}
	if err := installRules(); err != nil {
		return nil, err
	}
	if err := applySettings(trackingSettings()); err != nil {
		return nil, err
	}
	if err := raiseTap(nl, link); err != nil {
		return nil, err
	}
	if err := m.checkAlone(nl); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return pinNamespace(path)
}

// pinNamespace mounts the calling thread's network namespace at path and opens it.
func pinNamespace(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("name of the network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount the network namespace: %w", err), os.Remove(path))
	}
	ns, err := openNamespace(path)
	if err != nil {
		return nil, errors.Join(err, unpin(path))
	}
	return ns, nil
}

// openNamespace opens the namespace mounted at path and makes sure that it is one.
func openNamespace(path string) (*os.File, error) {
	ns, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(ns.Fd()), &st); err != nil {
		ns.Close()
		return nil, fmt.Errorf("statfs %s: %w", path, err)
	}
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if st.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		ns.Close()
		return nil, fmt.Errorf("%s: %w", path, errNotNamespace)
	}
	return ns, nil
}

// removeBox takes the link away, then the namespace with its rules, then the name. Each part may be missing.
func removeBox(path string) error {
	ns, err := openNamespace(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = nsthread.In(ns, removeTap)
		ns.Close()
		if err != nil {
			return err
		}
	case !errors.Is(err, errNotNamespace):
		return err
	}
	return unpin(path)
}

// unpin takes the mount and the name away. A copy of the mount in another mount namespace (a process started with a
// private one) goes with the name.
func unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing is mounted any more
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
