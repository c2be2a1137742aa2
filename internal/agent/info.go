package agent

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// maxShownAttributes bounds the attributes of one file in an answer; more are left out.
const maxShownAttributes = 16 << 10

// names are the user names of uids.
type names map[uint32]string

// names reads the whole user database once.
func (db userDatabase) names() names {
	all := names{}
	lines, err := db.read("passwd")
	if err != nil {
		return all // owners appear as numbers
	}
	for _, f := range lines {
		if a, ok := parseAccount(f); ok {
			if _, known := all[uint32(a.uid)]; !known {
				all[uint32(a.uid)] = strings.ToValidUTF8(a.name, "?")
			}
		}
	}
	return all
}

func (n names) of(uid uint32) string {
	if name, ok := n[uid]; ok && len(name) <= maxUserName {
		return name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// statFile answers GET /files/stat.
func (s *Server) statFile(w http.ResponseWriter, _ *http.Request, req fileRequest) error {
	owners := s.table.users.names()
	var info apiv1.FileInfo
	err := asUser(req.account, func() (err error) {
		flags := uint64(unix.O_PATH | unix.O_NOFOLLOW)
		if req.follow {
			flags = unix.O_PATH
		}
		fd, err := openAt(unix.AT_FDCWD, req.path, flags)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		info, err = describe(fd, req.path, owners)
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

// describe tells what an O_PATH descriptor stands for.
func describe(fd int, p string, owners names) (apiv1.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return apiv1.FileInfo{}, err
	}
	info := apiv1.FileInfo{Path: p, Type: fileType(st.Mode), SizeBytes: st.Size, Mode: fmt.Sprintf("%04o", st.Mode&0o7777),
		UID: st.Uid, GID: st.Gid, Owner: owners.of(st.Uid), ModifiedAt: moment(st.Mtim), XAttrs: map[string]string{}}
	if info.Type == apiv1.FileTypeSymlink {
		to, err := readLink(fd, "")
		if err != nil {
			return apiv1.FileInfo{}, err
		}
		info.SymlinkTarget = &to
	}
	for name, value := range attributes(fd, maxShownAttributes) {
		if utf8.ValidString(value) && !strings.Contains(value, "\x00") {
			info.XAttrs[name] = value
			continue
		}
		if info.XAttrsB64 == nil {
			info.XAttrsB64 = map[string]string{}
		}
		info.XAttrsB64[name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	return info, nil
}

func fileType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return apiv1.FileTypeFile
	case unix.S_IFDIR:
		return apiv1.FileTypeDirectory
	case unix.S_IFLNK:
		return apiv1.FileTypeSymlink
	case unix.S_IFIFO:
		return apiv1.FileTypeFIFO
	case unix.S_IFSOCK:
		return apiv1.FileTypeSocket
	case unix.S_IFCHR:
		return apiv1.FileTypeCharDevice
	}
	return apiv1.FileTypeBlockDevice
}

// moment is a file's time; one that RFC 3339 cannot write is put at the nearest end.
func moment(ts unix.Timespec) time.Time {
	const first, last = -62167219200, 253402300799 // of the years 0 and 9999
	return time.Unix(min(max(ts.Sec, first), last), ts.Nsec).UTC()
}
