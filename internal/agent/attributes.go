package agent

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttributes bounds what is read of one file's extended attributes; the kernel's own bound for one value and for
// the list of names is 64 KiB.
const maxAttributes = 1 << 20

// attributes reads the extended attributes of what an O_PATH descriptor stands for, at most limit bytes of names and
// values; what comes after is left out. A file system without attributes has none, nor does a file whose attributes
// the calling thread may not read.
func attributes(fd, limit int) map[string]string {
	p := procPath(fd)
	buf := make([]byte, 4<<10)
	n, err := unix.Listxattr(p, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10)
		n, err = unix.Listxattr(p, buf)
	}
	if err != nil || n <= 0 {
		return nil
	}
	out := map[string]string{}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		size, err := unix.Getxattr(p, name, value)
		if err != nil || name == "" {
			continue
		}
		if limit -= len(name) + size; limit < 0 {
			break
		}
		out[name] = string(value[:size])
	}
	return out
}

const (
	userAttribute = "user."
	aclAttribute  = "system.posix_acl_access"
)

// copyAttributes gives the file to the attributes of the file from that belong to its users: their own and its access
// list. They are read with the agent's rights, since who may write a file in place need not be able to read it. What
// says what a program may do (security.*) is lost by a write in place too.
func copyAttributes(from, to int) error {
	var all map[string]string
	if err := asAgent(func() error { all = attributes(from, maxAttributes); return nil }); err != nil {
		return err
	}
	for name, value := range all {
		if !strings.HasPrefix(name, userAttribute) && name != aclAttribute {
			continue
		}
		if err := unix.Fsetxattr(to, name, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return nil
}
