package guestos

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/guestos/bootconf"
)

// Assets are the guest's files, opened. They stay the same when a Build replaces the files in the directory. Safe for
// concurrent use.
type Assets struct {
	manifest  Manifest
	kernel    *os.File
	initramfs *os.File
}

// Open opens what Build wrote into dir and compares it with the digests in the manifest, which reads both files
// (70 MB) once.
func Open(dir string) (*Assets, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("guest files: %w", err)
	}
	defer root.Close()
	m, err := readManifest(root)
	if err != nil {
		return nil, fmt.Errorf("guest files: manifest: %w", err)
	}
	kernel, err := openVerified(root, m.Kernel)
	if err != nil {
		return nil, fmt.Errorf("guest files: %w", err)
	}
	initramfs, err := openVerified(root, m.Initramfs)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("guest files: %w", err), kernel.Close())
	}
	return &Assets{manifest: m, kernel: kernel, initramfs: initramfs}, nil
}

// ErrDamaged is returned for a file that is not the one in the manifest.
var ErrDamaged = errors.New("the file is damaged")

func openVerified(root *os.Root, want File) (_ *os.File, err error) {
	f, err := root.Open(want.Name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", want.Name, err)
	}
	if n != want.Size || hex.EncodeToString(sum.Sum(nil)) != want.SHA256 {
		return nil, fmt.Errorf("%s: %w", want.Name, ErrDamaged)
	}
	return f, nil
}

// Close closes the files; those that were handed out stay open.
func (a *Assets) Close() error { return errors.Join(a.kernel.Close(), a.initramfs.Close()) }

// Manifest says what these files are.
func (a *Assets) Manifest() Manifest { return a.manifest }

// OpenKernel returns the kernel, opened anew for reading. The caller closes it.
func (a *Assets) OpenKernel() (*os.File, error) { return reopen(a.kernel, "vmlinux") }

// OpenInitramfs returns the initramfs that all machines share, opened anew for reading. The caller closes it.
func (a *Assets) OpenInitramfs() (*os.File, error) { return reopen(a.initramfs, "initramfs") }

// reopen gives a descriptor with an offset of its own, also after the file lost its name.
func reopen(f *os.File, name string) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("guest files: reopen %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// MachineInitrd returns the initramfs with one machine's boot configuration behind it, as a file in memory that nobody
// can change any more. The caller closes it.
func (a *Assets) MachineInitrd(c bootconf.Config) (_ *os.File, err error) {
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("initrd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initrd")
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := io.Copy(f, io.NewSectionReader(a.initramfs, 0, a.manifest.Initramfs.Size)); err != nil {
		return nil, fmt.Errorf("initrd: %w", err)
	}
	if err := bootconf.Append(f, c); err != nil {
		return nil, fmt.Errorf("initrd: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("initrd: %w", err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("initrd: seal: %w", err)
	}
	return f, nil
}
