package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where an ext4 superblock says things (Documentation/filesystems/ext4/super.rst).
const (
	superblockOffset = 1024
	superblockSize   = 1024
	superBlocksLow   = 0x04
	superLogBlock    = 0x18
	superMagic       = 0x38
	superIncompat    = 0x60
	superBlocksHigh  = 0x150

	ext4Magic       = 0xef53
	incompat64Bit   = 0x80
	maxLogBlockSize = 6 // 64 KiB
)

// ext4ResizeFS is the number of EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64).
const ext4ResizeFS = 0x40086610

// extent is the size of an ext4 file system.
type extent struct {
	blocks    uint64
	blockSize uint64 // bytes
}

// growDisk makes the file system as large as the disk: templates are small, a sandbox's disk is what its spec says.
// The kernel does it online. Inode tables are neither cleared now nor, as the kernel would, in the background: on a
// sparse disk that only takes room in the pool, and tables that were never used read as zeros anyway.
func (b *booter) growDisk(context.Context) error {
	if b.readOnly {
		return nil
	}
	if err := growFileSystem(); err != nil {
		return err
	}
	// Not before: without the promise of clearing tables later, growing would clear them itself.
	if err := unix.Mount("", newRoot, "", unix.MS_REMOUNT, "noinit_itable"); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	return nil
}

func growFileSystem() error {
	disk, err := os.Open(diskPath)
	if err != nil {
		return err
	}
	defer disk.Close()
	var size uint64
	if err := ioctlPointer(disk, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return fmt.Errorf("size of %s: %w", diskPath, err)
	}
	super := make([]byte, superblockSize)
	if _, err := disk.ReadAt(super, superblockOffset); err != nil {
		return fmt.Errorf("superblock: %w", err)
	}
	now, err := parseSuperblock(super)
	if err != nil {
		return err
	}
	want := size / now.blockSize
	if want <= now.blocks {
		return nil
	}
	root, err := os.Open(newRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := ioctlPointer(root, ext4ResizeFS, unsafe.Pointer(&want)); err != nil {
		return fmt.Errorf("grow from %d to %d blocks: %w", now.blocks, want, err)
	}
	return nil
}

func parseSuperblock(super []byte) (extent, error) {
	if len(super) < superblockSize || binary.LittleEndian.Uint16(super[superMagic:]) != ext4Magic {
		return extent{}, errors.New("superblock: no ext4 file system")
	}
	shift := binary.LittleEndian.Uint32(super[superLogBlock:])
	if shift > maxLogBlockSize {
		return extent{}, fmt.Errorf("superblock: block size 2^%d KiB", shift)
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[superBlocksLow:]))
	if binary.LittleEndian.Uint32(super[superIncompat:])&incompat64Bit != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(super[superBlocksHigh:])) << 32
	}
	return extent{blocks: blocks, blockSize: 1024 << shift}, nil
}

// ioctlPointer is an ioctl whose argument is a pointer.
func ioctlPointer(f *os.File, request uint, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
