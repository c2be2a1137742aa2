package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
)

const loopXFS = string(pool.KindLoopXFS)

// errInUse says that an object got an owner before it could be removed.
var errInUse = errors.New("something stands for it by now")

func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH)
}

func ignoreGone(err error) error {
	if errors.Is(err, confine.ErrGone) || errors.Is(err, confine.ErrNotOurs) {
		return nil
	}
	return err
}

// loopScan lists the loop devices on files of the installation. Only the pool's is ours; another was made by somebody
// who looks at a disk.
func loopScan(cfg Config, at places) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		backed, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return nil, fmt.Errorf("list loop devices: %w", err)
		}
		root := real(cfg.Dir.Path) + "/"
		var all []Object
		seen := map[string]bool{}
		for _, file := range backed {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // it went away
			}
			image := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), " (deleted)")
			if !strings.HasPrefix(image, root) {
				continue
			}
			o := Object{Kind: Loop, Name: image, Keep: "SPACE does not detach loop devices: losetup -d does"}
			if seen[image] || image != at.image {
				o.Name += " (" + filepath.Base(filepath.Dir(filepath.Dir(file))) + ")"
			}
			seen[image] = true
			all = append(all, o)
		}
		return all, nil
	}
}

// portScan lists the TCP ports that space up and its parts listen on. Without a space up there are none.
func portScan(dir *datadir.Dir) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		holder, ok := ownUp(dir)
		if !ok {
			return nil, nil
		}
		inodes := map[string]bool{}
		for _, pid := range append(children(holder.PID), holder.PID) {
			addSockets(inodes, pid)
		}
		var all []Object
		for _, table := range []string{"tcp", "tcp6"} {
			addrs, err := listening("/proc/self/net/"+table, inodes)
			if err != nil {
				return nil, err
			}
			for _, a := range addrs {
				all = append(all, Object{Kind: Port, Name: portName(a), Keep: "a part of space up listens there; restart space up"})
			}
		}
		return all, nil
	}
}

func portName(addr string) string { return "tcp " + addr }

// children lists the processes that a process has started.
func children(pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range lists {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(f); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// addSockets adds the inodes of a process's sockets. A process that has ended has none.
func addSockets(inodes map[string]bool, pid int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		if inode, ok := strings.CutPrefix(link, "socket:["); err == nil && ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
}

// listening reads one of the kernel's tables of sockets: the addresses of those that listen and are in inodes.
func listening(path string, inodes map[string]bool) ([]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without IPv6
	}
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	const stateListen = "0A"
	var addrs []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != stateListen || !inodes[f[9]] {
			continue
		}
		addr, err := parseAddr(f[1])
		if err != nil {
			return nil, fmt.Errorf("list ports: %w", err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parseAddr reads the kernel's form of an address: words of four bytes in the host's order (little-endian on what SPACE
// runs on), each in hex, and the port.
func parseAddr(s string) (string, error) {
	host, port, ok := strings.Cut(s, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || len(host)%8 != 0 {
		return "", fmt.Errorf("%q is no address", s)
	}
	raw := make([]byte, 0, 16)
	for ; host != ""; host = host[8:] {
		word, err := strconv.ParseUint(host[:8], 16, 32)
		if err != nil {
			return "", fmt.Errorf("%q is no address", s)
		}
		raw = append(raw, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return "", fmt.Errorf("%q is no address", s)
	}
	return netip.AddrPortFrom(addr, uint16(p)).String(), nil
}
