package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// path is the watched directory as an event tells it.
func (wt *fileWatch) path() string {
	if wt.base == "" {
		return "/"
	}
	return wt.base
}

// add watches a directory, as far as the user may read it.
func (wt *fileWatch) add(p string, flags uint32) error {
	if len(wt.dirs) >= maxWatched {
		return errTooMany
	}
	name := p
	if name == "" {
		name = "/"
	}
	wd, err := unix.InotifyAddWatch(wt.fd, name, watchMask|flags)
	if errors.Is(err, unix.ENOSPC) { // the kernel's bound, not the disk's
		return errTooMany
	}
	if err != nil {
		return err
	}
	if old, known := wt.dirs[int32(wd)]; known {
		delete(wt.ids, old) // the same directory under its new name
	}
	wt.dirs[int32(wd)], wt.ids[p] = p, int32(wd)
	return nil
}

// tree watches the directories below p. With tell, what is there is told as new: it came before the watch did. What
// has vanished or may not be read is left out.
func (wt *fileWatch) tree(p string, tell bool) error {
	fd, err := openAt(unix.AT_FDCWD, p+"/", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), p)
	defer dir.Close()
	for {
		some, err := dir.Readdirnames(readNames)
		for _, name := range some {
			if err := wt.found(fd, p, name, tell); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func (wt *fileWatch) found(dir int, p, name string, tell bool) error {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	full := p + "/" + name
	if tell {
		wt.emit(apiv1.FileCreated, full, isDir)
	}
	if !isDir {
		return nil
	}
	return wt.addTree(full, tell)
}

// addTree watches a directory that is not the first one.
func (wt *fileWatch) addTree(p string, tell bool) error {
	switch err := wt.add(p, unix.IN_DONT_FOLLOW); {
	case errors.Is(err, errTooMany):
		return err
	case err != nil:
		return nil
	}
	return wt.tree(p, tell)
}

// digest tells what a read of inotify says. It returns false when there is nothing left to watch.
func (wt *fileWatch) digest(buf []byte) bool {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := int(binary.NativeEndian.Uint32(buf[12:]))
		rest := buf[unix.SizeofInotifyEvent:]
		if size > len(rest) {
			return false // never, says the kernel
		}
		name, _, _ := bytes.Cut(rest[:size], []byte{0})
		buf = rest[size:]
		if !wt.event(wd, mask, string(name)) {
			return false
		}
	}
	return true
}

func (wt *fileWatch) event(wd int32, mask uint32, name string) bool {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		wt.overflow()
		if wt.recursive {
			wt.more(wt.tree(wt.base, false))
		}
		return true
	}
	p, known := wt.dirs[wd]
	if !known {
		return true
	}
	if name == "" {
		return wt.self(wd, p, mask)
	}
	if wt.only != "" && name != wt.only {
		return true
	}
	full, dir := p+"/"+name, mask&unix.IN_ISDIR != 0
	for _, kind := range []struct {
		mask uint32
		name string
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, apiv1.FileCreated}, {unix.IN_MODIFY, apiv1.FileWritten}, {unix.IN_DELETE, apiv1.FileRemoved},
		{unix.IN_MOVED_FROM, apiv1.FileRenamed}, {unix.IN_ATTRIB, apiv1.FileChmod},
	} {
		if mask&kind.mask != 0 {
			wt.emit(kind.name, full, dir)
		}
	}
	if wt.recursive && dir {
		switch {
		case mask&unix.IN_MOVED_FROM != 0:
			wt.drop(full)
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			wt.more(wt.addTree(full, true))
		}
	}
	return true
}

// more takes the error of watching more directories than at first: what is not watched is an overflow.
func (wt *fileWatch) more(err error) {
	if err != nil {
		wt.overflow()
	}
}

// self is an event of a watched directory itself. Those below the first are told by the directory they are in.
func (wt *fileWatch) self(wd int32, p string, mask uint32) bool {
	if mask&unix.IN_IGNORED != 0 {
		delete(wt.dirs, wd)
		if wt.ids[p] == wd {
			delete(wt.ids, p)
		}
	}
	if p != wt.base {
		return true
	}
	switch {
	case mask&unix.IN_DELETE_SELF != 0:
		wt.emit(apiv1.FileRemoved, wt.path(), true)
	case mask&unix.IN_MOVE_SELF != 0:
		wt.emit(apiv1.FileRenamed, wt.path(), true)
	case mask&unix.IN_ATTRIB != 0 && wt.only == "":
		wt.emit(apiv1.FileChmod, wt.path(), true)
		return true
	case mask&unix.IN_IGNORED == 0:
		return true
	}
	return false
}

// drop ends the watches of a directory that was moved away and of all below it.
func (wt *fileWatch) drop(p string) {
	for name, wd := range wt.ids {
		if name == p || strings.HasPrefix(name, p+"/") {
			_, _ = unix.InotifyRmWatch(wt.fd, uint32(wd)) // it may have gone by itself
			delete(wt.ids, name)
			delete(wt.dirs, wd)
		}
	}
}
