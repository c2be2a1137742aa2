package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/guestnet"
)

// maxHosts is how large a hosts file may be to be changed, in bytes.
const maxHosts = 1 << 20

// hostnameAddr is the loopback address under which a host knows its own name; Debian uses the same.
const hostnameAddr = "127.0.1.1"

// writeResolver names the host's side of the link as the guest's name server: there is no other. An image without
// the directory etc gets none.
func writeResolver(etc string) error {
	return inDir(etc, func(root *os.Root) error {
		return replace(root, "resolv.conf", "nameserver "+guestnet.HostAddr().String()+"\n")
	})
}

// writeHostname records the host's name in etc, so that programs find it and can resolve it (sudo insists).
func writeHostname(etc, name string) error {
	return inDir(etc, func(root *os.Root) error {
		if err := replace(root, "hostname", name+"\n"); err != nil {
			return err
		}
		hosts, err := readSmall(root, "hosts")
		if errors.Is(err, fs.ErrNotExist) {
			hosts, err = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n", nil
		}
		if err != nil {
			return err
		}
		return replace(root, "hosts", withHostname(hosts, name))
	})
}

// withHostname puts name into the text of a hosts file.
func withHostname(hosts, name string) string {
	var out strings.Builder
	for line := range strings.Lines(hosts) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == hostnameAddr {
			continue
		}
		out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	out.WriteString(hostnameAddr + "\t" + name + "\n")
	return out.String()
}

// inDir calls f for a directory if it exists.
func inDir(dir string, f func(*os.Root) error) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return f(root)
}

// replace gives name new content in one step, also where the image has a symbolic link (often a dangling one).
func replace(root *os.Root, name, content string) (err error) {
	temporary := "." + name + ".space"
	if err := root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return root.Rename(temporary, name)
}

// readSmall reads a regular file. It does not wait for a pipe that an image may have in its place.
func readSmall(root *os.Root, name string) (string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxHosts {
		return "", fmt.Errorf("%s is no small regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxHosts))
	return string(data), err
}
