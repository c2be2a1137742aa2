package setup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/hostprog"
	"github.com/space-sandbox/space/internal/sandbox"
)

// guest makes kernel and initramfs, unless those that are there hold this program's agent.
func (r *run) guest(ctx context.Context) (string, error) {
	agent, err := r.host.Agent()
	if err != nil {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the guest's agent is missing", Cause: err.Error(),
			Remedy: "build with: make build", Err: err}
	}
	if m, ok := currentGuest(r.dir.GuestDir(), agent); ok {
		return "kernel " + m.KernelVersion + " is there", nil
	}
	if r.opts.AssetsDir != "" {
		m, err := r.copyGuest(agent)
		return "kernel " + m.KernelVersion + " from the bundle", err
	}
	m, err := r.host.BuildGuest(ctx, agent, r.dir.GuestDir(), filepath.Join(r.dir.Path, "work"), r.progress)
	return "kernel " + m.KernelVersion, err
}

// currentGuest reports whether the files in dir are whole and hold this agent.
func currentGuest(dir string, agent []byte) (guestos.Manifest, bool) {
	assets, err := guestos.Open(dir)
	if err != nil {
		return guestos.Manifest{}, false
	}
	defer assets.Close()
	sum := sha256.Sum256(agent)
	m := assets.Manifest()
	return m, m.AgentSHA256 == hex.EncodeToString(sum[:])
}

func (h Host) buildGuest(ctx context.Context, agent []byte, version, dir, work string, note func(string)) (_ guestos.Manifest, err error) {
	deb, err := downloadKernel(ctx, work, note)
	if err != nil {
		return guestos.Manifest{}, err
	}
	defer func() { err = errors.Join(err, deb.Close()) }()
	h.at("guest: package there")
	note("unpacking the kernel")
	return guestos.Build(ctx, guestos.BuildConfig{KernelDeb: deb, Agent: agent, AgentVersion: version, Dir: dir})
}

// copyGuest takes kernel and initramfs from a bundle. The manifest is replaced last.
func (r *run) copyGuest(agent []byte) (guestos.Manifest, error) {
	b, err := openBundle(r.opts.AssetsDir)
	if err != nil {
		return guestos.Manifest{}, err
	}
	m, ok := currentGuest(b.guestDir(), agent)
	if !ok {
		return m, b.error("its kernel and initramfs are damaged or of another version of space",
			"make it again with this program: space assets build "+r.opts.AssetsDir)
	}
	to, err := r.root.OpenRoot("node/guest")
	if err != nil {
		return m, err
	}
	defer to.Close()
	for _, name := range []string{m.Kernel.Name, m.Initramfs.Name, "manifest.json"} {
		data, err := os.ReadFile(filepath.Join(b.guestDir(), name))
		if err != nil {
			return m, err
		}
		r.host.at("guest: copy " + name[:strings.IndexAny(name+"-", "-.")])
		// Readable by all, as guestos makes them: a VMM opens them as another user, by our descriptor.
		if err := writeFile(to, name, data, 0o444, owner{}); err != nil {
			return m, err
		}
	}
	return m, dropOldGuest(to, m)
}

// dropOldGuest removes the files of earlier kernels and agents. A node that runs has its own open.
func dropOldGuest(dir *os.Root, m guestos.Manifest) error {
	list, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name() == m.Kernel.Name || e.Name() == m.Initramfs.Name || e.Name() == "manifest.json" {
			continue
		}
		if err := dir.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// kernelMeta depends on the newest kernel made for virtual machines.
const kernelMeta = "linux-image-cloud-amd64"

// downloadKernel fetches the package of the guest's kernel. It is never installed on the host.
func downloadKernel(ctx context.Context, dir string, note func(string)) (io.ReadCloser, error) {
	name, err := kernelName(ctx)
	if err != nil {
		note("apt-get update")
		if err := aptGet(ctx, note, "update"); err != nil {
			return nil, kernelError(err)
		}
		if name, err = kernelName(ctx); err != nil {
			return nil, kernelError(err)
		}
	}
	tmp, err := os.MkdirTemp(dir, "kernel-")
	if err != nil {
		return nil, fmt.Errorf("guest kernel: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // the opened file is what counts; setup sweeps its work directory
	note("downloading " + name)
	if err := fetchPackage(ctx, tmp, name, note); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(found) != 1 {
		return nil, kernelError(fmt.Errorf("apt-get download left %d packages (%w)", len(found), err))
	}
	f, err := os.Open(found[0])
	if err != nil {
		return nil, fmt.Errorf("guest kernel: %w", err)
	}
	return f, nil
}

// fetchPackage downloads into dir; lists that are too old name packages that are gone, so they are renewed once.
func fetchPackage(ctx context.Context, dir, name string, note func(string)) error {
	download := func() error {
		return systemCommand(ctx, note, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name)
	}
	err := download()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err := aptGet(ctx, note, "update"); err != nil {
		return kernelError(err)
	}
	if err := download(); err != nil {
		return kernelError(err)
	}
	return nil
}

// kernelName asks apt which kernel the meta package stands for.
func kernelName(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, hostprog.Path("apt-cache"), "depends", "--important", kernelMeta)
	cmd.Env = hostprog.Env("LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache depends %s: %w", kernelMeta, err)
	}
	return parseDepends(out)
}

func parseDepends(out []byte) (string, error) {
	for line := range bytes.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "Depends: ")
		if ok && strings.HasPrefix(name, "linux-image-") && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.+-") == "" {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s names no kernel", kernelMeta)
}

func kernelError(err error) error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the guest's kernel could not be fetched", Cause: err.Error(),
		Remedy: "check that apt knows the package " + kernelMeta + " (apt-get update), or take a bundle: --assets DIR", Err: err}
}
