package template

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/hostprog"
)

const (
	mib       = 1 << 20
	blockSize = 4096
	inodeSize = 256
	// imageID is the UUID of every image built here and the hash seed of all: images of the same content differ only in
	// the times of their files, and no two are ever mounted on one kernel.
	imageID = "5bace000-0000-4000-8000-000000000001"
	// inodesPerGroup is one for each 16 KiB; the groups that growing adds get as many as the first ones.
	inodesPerGroup = 8192
	groupBytes     = 8 * blockSize * blockSize
	// growBlocks is how far the guest can grow the file system online with the reserved descriptors: 1 TiB.
	growBlocks = (1 << 40) / blockSize
	// features are written out, since the defaults of mke2fs differ between hosts and the guest's kernel must know all.
	features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file," +
		"dir_nlink,extra_isize,metadata_csum"
)

// content is what a directory tree needs in a file system.
type content struct {
	bytes  int64 // of data, rounded up to blocks
	inodes int64
}

func measure(root string) (content, error) {
	var c content
	err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		c.inodes++
		if d.IsDir() || info.Mode().IsRegular() {
			c.bytes += (info.Size() + blockSize - 1) / blockSize * blockSize
		}
		return nil
	})
	if err != nil {
		return content{}, fmt.Errorf("measure %s: %w", root, err)
	}
	return c, nil
}

// imageBytes is the size of the file system: the content, its extents, inodes, journal and a little air.
func imageBytes(c content, journalMiB int) int64 {
	inodes := inodeCount(c, c.bytes) * inodeSize
	size := c.bytes + c.bytes/64 + inodes + int64(journalMiB)*mib + 4*mib
	return (size + mib - 1) / mib * mib
}

// journalFor is small for small content: a journal may take half of a file system at most.
func journalFor(c content) int {
	if c.bytes < 256*mib {
		return 4
	}
	return 32
}

func inodeCount(c content, size int64) int64 {
	groups := (size + groupBytes - 1) / groupBytes
	return max(c.inodes+c.inodes/8+1024, groups*inodesPerGroup)
}

// MakeExt4 writes an ext4 image of the tree at root, with the file system's UUID id, into f, which is empty. Zeroed parts
// stay holes. Inode tables count as initialised (the file is zeros), so no guest spends time or disk on it. Nothing is
// mounted, and no rights are needed but those to read the tree and to open f again. A journal of 0 MiB is one that fits.
func MakeExt4(ctx context.Context, root, id string, journalMiB int, f *os.File) error {
	c, err := measure(root)
	if err != nil {
		return err
	}
	if journalMiB == 0 {
		journalMiB = journalFor(c)
	}
	size := imageBytes(c, journalMiB)
	// The estimate leaves out directory indexes and fragmentation; a full image is made again a little larger.
	for range 4 {
		err = runMke2fs(ctx, root, id, journalMiB, c, size, f)
		if err == nil {
			return punchZeros(ctx, f, size)
		}
		if child, ok := errors.AsType[*childError](err); !ok || !child.outOfSpace() {
			return err
		}
		size += size/16/mib*mib + mib
	}
	return err
}

func runMke2fs(ctx context.Context, root, id string, journalMiB int, c content, size int64, f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("make image: %w", err)
	}
	args := []string{"-q", "-F", "-t", "ext4", "-O", features, "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize),
		"-N", strconv.FormatInt(inodeCount(c, size), 10), "-m", "0", "-e", "remount-ro", "-U", id,
		"-E", "root_owner=0:0,hash_seed=" + imageID + ",resize=" + strconv.Itoa(growBlocks) + ",lazy_itable_init=0,lazy_journal_init=0,nodiscard",
		"-J", "size=" + strconv.Itoa(journalMiB), "-d", root, "/dev/fd/3", strconv.FormatInt(size/blockSize, 10)}
	cmd := exec.CommandContext(ctx, hostprog.Path("mke2fs"), args...)
	cmd.Env = hostprog.Env("LC_ALL=C", "MKE2FS_CONFIG=/dev/null", "E2FSPROGS_FAKE_TIME="+strconv.Itoa(imageEpoch),
		"SOURCE_DATE_EPOCH="+strconv.Itoa(imageEpoch))
	cmd.ExtraFiles = []*os.File{f}
	return runChild(cmd, nil)
}

// punchZeros gives the blocks of zeros that mke2fs wrote (journal, inode tables) back: each copy is smaller by them.
func punchZeros(ctx context.Context, f *os.File, size int64) error {
	const step = 1 << 16
	zeros, buf := make([]byte, step), make([]byte, step)
	for off := int64(0); off < size; off += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf[:min(step, size-off)], off)
		if err != nil {
			return fmt.Errorf("make image: %w", err)
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			continue
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(n))
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // zeros are right as well
		}
		if err != nil {
			return fmt.Errorf("make image: %w", err)
		}
	}
	return nil
}
