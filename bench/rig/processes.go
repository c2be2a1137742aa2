package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Process is what one process of the product holds.
type Process struct {
	Name        string // up, control, node, gateway
	RSSKiB      int64
	Descriptors int
	Threads     int64
}

// Processes looks at space up and its three parts. It fails when one is missing.
func (p *Product) Processes() ([]Process, error) {
	up := p.up.Process.Pid
	out := []Process{}
	one, err := processAt(up, "up")
	if err != nil {
		return nil, err
	}
	out = append(out, one)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, parent, err := nameAndParent(pid)
		if part, ours := strings.CutPrefix(name, "space-"); err == nil && ours && parent == up {
			one, err := processAt(pid, part)
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return nil, err
		}
	}
	if len(out) != 4 {
		return nil, fmt.Errorf("%d processes of space up and its parts run, not 4", len(out))
	}
	return out, nil
}

func nameAndParent(pid int) (name string, parent int, err error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	fields := strings.Fields(string(stat[end+1:]))
	parent, err = strconv.Atoi(fields[1])
	return string(stat[open+1 : end]), parent, err
}

func processAt(pid int, name string) (Process, error) {
	p := Process{Name: name}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		switch key {
		case "VmRSS":
			p.RSSKiB, err = strconv.ParseInt(number, 10, 64)
		case "Threads":
			p.Threads, err = strconv.ParseInt(number, 10, 64)
		}
		if err != nil {
			return p, fmt.Errorf("status of %s: %w", name, err)
		}
	}
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	p.Descriptors = len(open)
	return p, err
}

// LoadAverage says how busy the machine is: the averages of 1, 5 and 15 minutes.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
