package ociimage

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names by which a layer removes what lies below it.
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh."
)

// unpacker applies layers, one after another, to a directory.
type unpacker struct {
	root   *os.Root
	budget *budget
	fresh  map[string]bool      // what this layer has made, with all directories above it
	times  map[string]time.Time // of directories: set at the end, since what is made in them changes theirs
}

func newUnpacker(root *os.Root, b *budget) *unpacker {
	return &unpacker{root: root, budget: b, times: map[string]time.Time{}}
}

// unpack applies all layers of an image.
func (a *archive) unpack(img image, root *os.Root) error {
	u := newUnpacker(root, newBudget(a.limits))
	if err := root.Chmod(".", 0o755); err != nil {
		return err
	}
	for _, l := range img.layers {
		u.fresh = map[string]bool{}
		if err := a.eachEntry(l, u.budget, u.entry); err != nil {
			return err
		}
	}
	return u.setTimes()
}

func (u *unpacker) setTimes() error {
	for name, at := range u.times {
		if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
			continue // a later layer removed it
		}
		if err := u.root.Chtimes(name, at, at); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	parts, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		if h.Typeflag != tar.TypeDir {
			return refuse("the image's root is not a directory")
		}
		return u.finish(".", h)
	}
	if strings.HasPrefix(parts[len(parts)-1], whiteoutPrefix) {
		return u.whiteout(parts)
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		if parts[0] == "dev" { // the guest has a /dev of its own
			return nil
		}
		return refuse("%.200q is a device", h.Name)
	}
	name, err := place(u.root, parts)
	if err != nil {
		return err
	}
	if err := u.clear(name, h); err != nil {
		return err
	}
	if err := u.make(name, h, content); err != nil {
		return err
	}
	u.mark(name)
	return nil
}

// clear removes what an entry replaces. A directory stays when the entry is one.
func (u *unpacker) clear(name string, h *tar.Header) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() && h.Typeflag == tar.TypeDir {
		return nil
	}
	if h.Typeflag == tar.TypeLink {
		if target, err := u.target(h); err != nil || target == name {
			return err // a link to itself changes nothing
		}
	}
	return u.root.RemoveAll(name)
}

func (u *unpacker) make(name string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return u.finish(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath || strings.ContainsRune(h.Linkname, 0) {
			return refuse("%.200q is a link to nothing", h.Name)
		}
		if err := u.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return u.root.Lchown(name, h.Uid, h.Gid)
	case tar.TypeLink:
		return u.link(name, h)
	case tar.TypeFifo:
		if err := u.fifo(name); err != nil {
			return err
		}
		return u.finish(name, h)
	}
	return refuse("%.200q is of a type that is not known: %q", h.Name, h.Typeflag)
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) (err error) {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := copyContent(f, content, h.Size, u.budget); err != nil {
		return err
	}
	return u.finish(name, h)
}

// target is the file that a hard link names: in this layer or below.
func (u *unpacker) target(h *tar.Header) (string, error) {
	parts, err := entryName(h.Linkname)
	if err != nil {
		return "", err
	}
	if len(parts) == 0 {
		return "", refuse("%.200q is a hard link to the root", h.Name)
	}
	return place(u.root, parts)
}

func (u *unpacker) link(name string, h *tar.Header) error {
	target, err := u.target(h)
	if err != nil {
		return err
	}
	if target == name {
		return nil
	}
	info, err := u.root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return refuse("%.200q is a hard link to %.200q, which does not exist", h.Name, h.Linkname)
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return refuse("%.200q is a hard link to a directory", h.Name)
	}
	return u.root.Link(target, name)
}

func (u *unpacker) fifo(name string) error {
	dir, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), path.Base(name), unix.S_IFIFO|0o600, 0); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	return nil
}

// finish sets owner, then mode (changing the owner takes set-uid bits away), then attributes and time.
func (u *unpacker) finish(name string, h *tar.Header) error {
	if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := u.root.Chmod(name, modeOf(h)); err != nil {
		return err
	}
	if err := u.attributes(name, h); err != nil {
		return err
	}
	at := clamp(h.ModTime)
	if h.Typeflag == tar.TypeDir {
		u.times[name] = at
		return nil
	}
	return u.root.Chtimes(name, at, at)
}

func modeOf(h *tar.Header) fs.FileMode {
	mode := fs.FileMode(h.Mode & 0o777)
	for bit, flag := range map[int64]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if h.Mode&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// clamp keeps times within what ext4 can hold.
func clamp(t time.Time) time.Time {
	if s := t.Unix(); s < 0 || s > 1<<33 {
		return time.Unix(0, 0)
	}
	return t
}

const xattrRecord = "SCHILY.xattr."

// attributes sets extended attributes: those of users, and capabilities. Others belong to the host that made the image
// (SELinux labels, overlay marks).
func (u *unpacker) attributes(name string, h *tar.Header) error {
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrRecord)
		if !ok || attr != "security.capability" && !strings.HasPrefix(attr, "user.") || h.Typeflag == tar.TypeFifo {
			continue
		}
		if err := u.setAttribute(name, attr, value); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) setAttribute(name, attr, value string) error {
	f, err := u.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.Fsetxattr(int(f.Fd()), attr, []byte(value), 0)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) {
		return refuse("%.200q has an attribute that is not valid: %.100q", name, attr)
	}
	if err != nil {
		return fmt.Errorf("attribute %.100q: %w", attr, err)
	}
	return nil
}

// mark notes what this layer has made.
func (u *unpacker) mark(name string) {
	for ; name != "." && !u.fresh[name]; name = path.Dir(name) {
		u.fresh[name] = true
	}
}

// whiteout removes what lower layers have put somewhere; what this layer has made stays, in whatever order it comes.
func (u *unpacker) whiteout(parts []string) error {
	last := parts[len(parts)-1]
	victim := strings.TrimPrefix(last, whiteoutPrefix)
	switch {
	case last == opaqueName:
	case strings.HasPrefix(last, aufsPrefix): // marks of aufs itself
		return nil
	case victim == "" || victim == "." || victim == "..":
		return refuse("a whiteout names nothing: %.200q", strings.Join(parts, "/"))
	}
	dir, ok, err := u.existing(parts[:len(parts)-1])
	if err != nil || !ok {
		return err
	}
	if last == opaqueName {
		return u.removeChildren(dir)
	}
	return u.removeLower(path.Join(dir, victim))
}

// existing resolves a directory without making it: nothing is below a directory that is not there.
func (u *unpacker) existing(parts []string) (string, bool, error) {
	if len(parts) == 0 {
		return ".", true, nil
	}
	dir, err := lookup(u.root, parts)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return dir, err == nil, err
}

func (u *unpacker) removeLower(name string) error {
	if !u.fresh[name] {
		return u.root.RemoveAll(name)
	}
	info, err := u.root.Lstat(name)
	if err != nil || !info.IsDir() {
		return err
	}
	return u.removeChildren(name)
}

func (u *unpacker) removeChildren(dir string) error {
	f, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, name := range names {
		if err := u.removeLower(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
