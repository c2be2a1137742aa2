package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/ociimage"
	"github.com/space-sandbox/space/internal/sandbox"
)

// WorkerJob is one run of an import worker.
type WorkerJob struct {
	Mode string // of package ociimage
	// Archive is read by a scan and a build; Tree (an empty directory) and Image (an empty file) are a build's.
	Archive, Tree, Image *os.File
	// UIDs and GIDs are the ids inside, mapped one to one to the worker's own ids from FirstID on; the first is root.
	UIDs, GIDs []uint32
	FirstID    uint32
	Group      *confine.Group // nil: without limits of its own
}

// Worker runs a job to its end. When ctx ends, everything it started is gone when it returns.
type Worker func(ctx context.Context, job WorkerJob) (ociimage.Result, error)

// Limits of a worker.
const (
	workerMemory   = 2 << 30
	workerPIDs     = 64
	workerFiles    = 1024
	workerCPU      = 3600 // seconds
	workerFileSize = 32 << 30
	endTimeout     = 30 * time.Second
)

// ConfinedWorker starts the program at executable as `space worker MODE`: a user namespace in which only the given ids
// exist, no network, no other processes, no file but its descriptors, libraries and mke2fs.
func ConfinedWorker(executable string) Worker {
	return func(ctx context.Context, job WorkerJob) (ociimage.Result, error) {
		out, err := confine.NewOutput(ociimage.MaxResult)
		if err != nil {
			return ociimage.Result{}, err
		}
		defer out.Close()
		text, err := confine.NewOutput(4096)
		if err != nil {
			return ociimage.Result{}, err
		}
		defer text.Close()
		spec := workerSpec(executable, job)
		spec.Stdout, spec.Stderr = out, text
		p, err := confine.Start(spec)
		if err != nil {
			return ociimage.Result{}, err
		}
		defer func() { _ = p.Close() }() // it has been waited for
		status, err := p.Wait(ctx)
		if err != nil { // the first process of a PID namespace takes all others with it
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
			defer cancel()
			return ociimage.Result{}, errors.Join(context.Cause(ctx), p.Kill(end))
		}
		return readResult(status, out, text)
	}
}

func workerSpec(executable string, job WorkerJob) confine.Spec {
	spec := confine.Spec{Path: executable, Args: []string{"worker", job.Mode}, Files: []*os.File{job.Archive}, Group: job.Group,
		Namespaces: confine.Namespaces{Net: true, IPC: true, PID: true, User: &confine.UserNamespace{
			UIDs: idMaps(job.UIDs, job.FirstID), GIDs: idMaps(job.GIDs, job.FirstID)}},
		Landlock: &confine.Landlock{
			ReadOnly:  []string{executable, "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache"},
			ReadWrite: []string{os.DevNull},
		},
		Rlimits: []confine.Rlimit{{Resource: unix.RLIMIT_CORE, Value: 0}, {Resource: unix.RLIMIT_NOFILE, Value: workerFiles},
			{Resource: unix.RLIMIT_CPU, Value: workerCPU}, {Resource: unix.RLIMIT_FSIZE, Value: workerFileSize}},
	}
	if job.Tree != nil {
		spec.Files = append(spec.Files, job.Tree, job.Image)
		spec.Landlock.ReadWrite = append(spec.Landlock.ReadWrite, fmt.Sprintf("/proc/self/fd/%d", job.Tree.Fd()))
	}
	return spec
}

// idMaps maps each id to one of the worker's own.
func idMaps(ids []uint32, first uint32) []confine.IDMap {
	out := make([]confine.IDMap, len(ids))
	for i, id := range ids {
		out[i] = confine.IDMap{Inside: id, Outside: first + uint32(i), Size: 1}
	}
	return out
}

// readResult reads what a worker said, which may be anything.
func readResult(status confine.Status, out, text *os.File) (ociimage.Result, error) {
	var res ociimage.Result
	data, err := confine.ReadOutput(out)
	if err != nil {
		return res, err
	}
	if status.ExitCode != 0 || json.Unmarshal(data, &res) != nil {
		said, err := confine.ReadOutput(text)
		if err != nil {
			return res, err
		}
		return ociimage.Result{}, fmt.Errorf("the import worker ended without a result: %s: %s", status, printable(string(said)))
	}
	if res.Fault != "" {
		return ociimage.Result{}, workerFault(res.Fault)
	}
	if res.Refused != "" {
		return ociimage.Result{}, &sandbox.Error{Code: sandbox.CodeImageInvalid, Message: "the image was refused", Cause: printable(res.Refused),
			Remedy: "mend the image, or use another one"}
	}
	return res, nil
}

func workerFault(text string) error {
	if strings.Contains(text, unix.ENOSPC.Error()) || strings.Contains(text, unix.EDQUOT.Error()) {
		return &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the host's pool is full", Cause: printable(text),
			Remedy: "delete sandboxes or templates, or give the pool more space"}
	}
	return &sandbox.Error{Code: sandbox.CodeInternal, Message: "the image could not be imported", Cause: printable(text),
		Remedy: "see the log of space up"}
}

// printable bounds a worker's text and takes out what a terminal would act on.
func printable(s string) string {
	const most = 1024
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// importGroup is the name of the workers' control group: there is one import at a time.
const importGroup = "import"

// openGroup makes the workers' group anew; what a crash left in it is ended.
func (n *Node) openGroup(ctx context.Context) (*confine.Group, error) {
	if n.deps.Groups == nil {
		return nil, nil
	}
	if err := n.removeGroup(ctx); err != nil {
		return nil, err
	}
	g, err := n.deps.Groups.Create(importGroup, confine.Limits{MemoryBytes: workerMemory, PIDs: workerPIDs})
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	return g, nil
}

func (n *Node) removeGroup(ctx context.Context) error {
	if n.deps.Groups == nil {
		return nil
	}
	g, err := n.deps.Groups.Open(importGroup)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return g.Remove(ctx)
}
