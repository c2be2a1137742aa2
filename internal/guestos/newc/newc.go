// Package newc writes cpio archives in the "newc" format, the one the Linux kernel unpacks as an initramfs. It imports
// nothing heavy, so that the guest's agent can share it.
//
// The kernel unpacks several archives that follow each other in one buffer, as long as each starts at a multiple of
// four bytes; Close pads to Block bytes, so that archives can simply be appended.
package newc

import (
	"fmt"
	"io"
	"io/fs"
)

// Block is what a finished archive is padded to.
const Block = 512

const (
	maxName = 4095
	// maxData is the largest size the format's eight hexadecimal digits can say.
	maxData = 1<<32 - 1

	typeDirectory = 0o040000
	typeRegular   = 0o100000
	typeCharacter = 0o020000

	trailer = "TRAILER!!!"
)

// Writer writes one archive. Every entry belongs to root and has no time of its own, so that equal contents give equal
// archives. Not for concurrent use. After an error every call returns it.
type Writer struct {
	w     io.Writer
	n     int64
	inode uint32
	err   error
}

// NewWriter starts an archive on w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// entry is what one header says.
type entry struct {
	name         string
	mode         uint32
	links        uint32
	major, minor uint32
	data         []byte
}

// Dir adds a directory. Parents must have been added before.
func (w *Writer) Dir(name string, perm fs.FileMode) error {
	return w.add(entry{name: name, mode: typeDirectory | uint32(perm.Perm()), links: 2})
}

// File adds a regular file.
func (w *Writer) File(name string, perm fs.FileMode, data []byte) error {
	return w.add(entry{name: name, mode: typeRegular | uint32(perm.Perm()), links: 1, data: data})
}

// CharDevice adds a node of a character device.
func (w *Writer) CharDevice(name string, perm fs.FileMode, major, minor uint32) error {
	return w.add(entry{name: name, mode: typeCharacter | uint32(perm.Perm()), links: 1, major: major, minor: minor})
}

// Close writes the archive's end and pads it to Block. It does not close the writer below.
func (w *Writer) Close() error {
	w.write(entry{name: trailer, links: 1})
	w.pad(Block)
	if w.err != nil {
		return fmt.Errorf("end of cpio archive: %w", w.err)
	}
	return nil
}

func (w *Writer) add(e entry) error {
	if w.err != nil {
		return w.err
	}
	if !fs.ValidPath(e.name) || e.name == "." || len(e.name) > maxName || e.name == trailer {
		return fmt.Errorf("cpio entry: bad name %q", e.name)
	}
	if int64(len(e.data)) > maxData {
		return fmt.Errorf("cpio entry %s: %d bytes are more than the format can say", e.name, len(e.data))
	}
	w.inode++
	w.write(e)
	if w.err != nil {
		return fmt.Errorf("cpio entry %s: %w", e.name, w.err)
	}
	return nil
}

func (w *Writer) write(e entry) {
	inode := w.inode
	if e.name == trailer {
		inode = 0
	}
	// magic, inode, mode, uid, gid, links, mtime, size, device (major, minor), node (major, minor), name, checksum
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		inode, e.mode, 0, 0, e.links, 0, len(e.data), 0, 0, e.major, e.minor, len(e.name)+1, 0)
	w.put([]byte(header))
	w.put([]byte(e.name))
	w.put([]byte{0})
	w.pad(4)
	w.put(e.data)
	w.pad(4)
}

func (w *Writer) pad(to int64) {
	if over := w.n % to; over != 0 {
		w.put(make([]byte, to-over))
	}
}

func (w *Writer) put(b []byte) {
	if w.err != nil || len(b) == 0 {
		return
	}
	n, err := w.w.Write(b)
	w.n += int64(n)
	w.err = err
}
