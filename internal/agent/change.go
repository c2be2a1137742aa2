package agent

import (
	"errors"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// splitPath splits an absolute path into the directory and the name in it. Slashes at the end do not count. A path that
// ends in no name of its own (/, . and ..) cannot be made, moved or removed.
func splitPath(p string) (dir, name string, err error) {
	p = strings.TrimRight(p, "/")
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return "", "", unix.EINVAL
	}
	dir, name = p[:i+1], p[i+1:]
	if name == "" || name == "." || name == ".." {
		return "", "", unix.EINVAL
	}
	return dir, name, nil
}

// deleteFile answers DELETE /files. A link is removed, not what it leads to.
func (s *Server) deleteFile(w http.ResponseWriter, _ *http.Request, req fileRequest) error {
	err := asUser(req.account, func() error { return remove(req) })
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func remove(req fileRequest) error {
	dir, name, err := splitPath(req.path)
	if err != nil {
		return err
	}
	parent, err := openParent(dir, false)
	if err == nil {
		defer unix.Close(parent)
		err = removeAt(parent, name, req.recursive)
	}
	if req.missingOK && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func removeAt(parent int, name string, recursive bool) error {
	err := unix.Unlinkat(parent, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	if err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); !recursive || !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	// RemoveAll of a Root never leaves it, whatever is renamed or linked meanwhile.
	f, err := reopenPath(parent)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.RemoveAll(name)
}

// reopenPath makes an os.Root of a directory that is open.
func reopenPath(dir int) (*os.Root, error) {
	return os.OpenRoot(procPath(dir))
}

// makeDirectory answers POST /files/mkdir.
func (s *Server) makeDirectory(w http.ResponseWriter, _ *http.Request, req fileRequest) error {
	owners := s.table.users.names()
	var info apiv1.FileInfo
	err := asUser(req.account, func() (err error) {
		info, err = mkdir(req, owners)
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func mkdir(req fileRequest, owners names) (apiv1.FileInfo, error) {
	dir, name, err := splitPath(req.path)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	parent, err := openParent(dir, req.createParents)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	defer unix.Close(parent)
	mode := uint32(newDirMode)
	if req.mode >= 0 {
		mode = uint32(req.mode)
	}
	err = makeDir(parent, name, mode)
	if errors.Is(err, unix.EEXIST) && req.createParents {
		err = nil
		if fd, derr := openAt(parent, name, openDir); derr == nil {
			_ = unix.Close(fd)
		} else {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	return describeAt(parent, name, req.path, owners)
}

// makeDir makes a directory whose mode is not cut by a umask, and has it on the disk.
func makeDir(parent int, name string, mode uint32) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil {
		return err
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return syncDir(parent, f)
}

func describeAt(dir int, name, p string, owners names) (apiv1.FileInfo, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	defer unix.Close(fd)
	return describe(fd, p, owners)
}

// moveFile answers POST /files/move. Links are moved themselves.
func (s *Server) moveFile(w http.ResponseWriter, _ *http.Request, req fileRequest) error {
	owners := s.table.users.names()
	var info apiv1.FileInfo
	err := asUser(req.account, func() (err error) {
		info, err = move(req, owners)
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func move(req fileRequest, owners names) (apiv1.FileInfo, error) {
	fromDir, fromName, err := splitPath(req.path)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	toDir, toName, err := splitPath(req.to)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	from, err := openParent(fromDir, false)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	defer unix.Close(from)
	to, err := openParent(toDir, false)
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	defer unix.Close(to)
	flags := uint(unix.RENAME_NOREPLACE)
	if req.overwrite {
		flags = 0
	}
	err = unix.Renameat2(from, fromName, to, toName, flags)
	if errors.Is(err, unix.ENOTDIR) { // a directory onto a file: the directories around them are open already
		err = errNotDirectory
	}
	if err != nil {
		return apiv1.FileInfo{}, err
	}
	for _, dir := range []int{from, to} {
		if err := syncDir(dir, nil); err != nil {
			return apiv1.FileInfo{}, err
		}
	}
	return describeAt(to, toName, req.to, owners)
}
