package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/bench/rig"
)

// place is the directory that is measured in, and what it lies on.
type place struct {
	root, run            string // run has the sockets, whose paths must be short
	fsType, device, kind string
	fsync                rig.Figure
	load                 string
}

// makePlace makes a directory in parent. One whose files are memory is refused: nothing there is durable.
func makePlace(parent string) (*place, error) {
	if parent == "" {
		parent = "."
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, err
	}
	p := &place{load: rig.LoadAverage()}
	if p.fsType, p.device, err = mountOf(parent); err != nil {
		return nil, err
	}
	if slices.Contains([]string{"tmpfs", "ramfs"}, p.fsType) {
		return nil, fmt.Errorf("%s is on %s, not on a disk: name another directory with -dir", parent, p.fsType)
	}
	if p.kind, err = deviceKind(parent); err != nil {
		return nil, err
	}
	if p.root, err = os.MkdirTemp(parent, ".bench-control-"); err != nil {
		return nil, err
	}
	if p.run, err = os.MkdirTemp("", "space-bench-"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.root))
	}
	return p, nil
}

// mountOf returns the type and source of the mount that path is on: the last of those with the longest mount point.
func mountOf(path string) (fsType, source string, err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", "", err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	longest := -1
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if len(head) < 5 || len(tail) < 2 {
			continue
		}
		at := head[4]
		if (path == at || at == "/" || strings.HasPrefix(path, at+"/")) && len(at) >= longest {
			longest, fsType, source = len(at), tail[0], tail[1]
		}
	}
	return fsType, source, lines.Err()
}

// deviceKind says what is behind the file system: its block device in sysfs.
func deviceKind(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	node, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if errors.Is(err, os.ErrNotExist) {
		return "no block device", nil // a network file system, or one of several devices
	}
	if err != nil {
		return "", err
	}
	kind := "disk"
	for _, k := range []struct{ in, name string }{{"/virtio", "virtio disk"}, {"/nvme", "NVMe"}, {"/loop", "loop device"},
		{"/zram", "compressed memory"}, {"/ram", "memory"}, {"/dm-", "device mapper"}, {"/ata", "SATA disk"}} {
		if strings.Contains(node, k.in) {
			kind = k.name
			break
		}
	}
	for _, dir := range []string{node, filepath.Dir(node)} { // a partition has its queue in the disk above it
		if text, err := os.ReadFile(filepath.Join(dir, "queue", "write_cache")); err == nil {
			kind += ", " + strings.TrimSpace(string(text)) + " cache"
			break
		}
	}
	return kind, nil
}

// measure times what every commit at least needs: a page appended to a file, and fsync.
func (p *place) measure() error {
	f, err := os.Create(filepath.Join(p.root, "fsync"))
	if err != nil {
		return err
	}
	defer f.Close()
	m := rig.Measurements{}
	page := make([]byte, 4096)
	for range 100 {
		begin := time.Now()
		if _, err := f.Write(page); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		m.Add("fsync", map[string]float64{"": milliseconds(time.Since(begin))})
	}
	p.fsync = m.Figures()["fsync"]
	return nil
}

func (p *place) remove() error { return errors.Join(os.RemoveAll(p.root), os.RemoveAll(p.run)) }

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
