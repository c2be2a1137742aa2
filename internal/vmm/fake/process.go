package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/vmm"
)

// process is an agent in a process of its own.
type process struct {
	proc *confine.Process
}

// startProcess starts one. It takes over the listener when it succeeds.
func (d *Driver) startProcess(spec vmm.Spec, p private, listener *net.UnixListener, _ *slog.Logger) (body, error) {
	program, err := d.agent()
	if err != nil {
		return nil, err
	}
	socket, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	config, err := json.Marshal(bootconf.Config{Token: spec.AgentToken, SandboxID: string(spec.ID)})
	if err != nil {
		return nil, err
	}
	stdin, err := pipeWith(config)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	proc, err := confine.Start(confine.Spec{
		Path: "/proc/self/fd/" + strconv.Itoa(int(program.Fd())),
		Args: []string{"--fake", "--root", p.Root, "--memory-mib", strconv.Itoa(spec.MemoryMiB)},
		Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:  p.Root, Files: []*os.File{socket}, Stdin: stdin, UID: spec.UID, GID: spec.GID, Group: spec.Group,
	})
	if err != nil {
		return nil, err
	}
	listener.Close()
	return &process{proc}, nil
}

func adoptProcess(id confine.Identity) (body, error) {
	proc, err := confine.Adopt(id)
	if err != nil {
		return nil, err
	}
	return &process{proc}, nil
}

// pipeWith returns the reading end of a pipe that holds data (less than a page) and nothing after it.
func pipeWith(data []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(data)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// programFile keeps the agent's program as a file in memory that nobody can change: nothing to remove afterwards, and
// no directory that must be executable.
func programFile(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("space-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("fake: memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "space-agent")
	if _, err := f.Write(program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("fake: sealing the agent: %w", err), f.Close())
	}
	return f, nil
}

func (p *process) identity() confine.Identity     { return p.proc.Identity() }
func (p *process) ended() <-chan struct{}         { return p.proc.Done() }
func (p *process) kill(ctx context.Context) error { return p.proc.Kill(ctx) }
func (p *process) close() error                   { return p.proc.Close() }

func (p *process) wait(ctx context.Context) (string, error) {
	status, err := p.proc.Wait(ctx)
	return status.String(), err
}

func (p *process) oom() (bool, error) {
	if g := p.proc.Group(); g != nil {
		return g.OOMKilled()
	}
	return false, nil
}

func (p *process) pause(ctx context.Context) error {
	if err := p.proc.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	return stopUID(ctx, p.identity().UID)
}

func (p *process) resume(ctx context.Context) error {
	if err := continueUID(ctx, p.identity().UID); err != nil {
		return err
	}
	return p.proc.Signal(unix.SIGCONT)
}

// sweep ends commands that outlived their agent.
func (p *process) sweep(ctx context.Context) error {
	if g := p.proc.Group(); g != nil {
		return g.Kill(ctx)
	}
	return endUID(ctx, p.identity().UID)
}

// endUID ends what runs as a machine's uid. Without root that uid is our own, and the agent's own clean-up must do.
func endUID(ctx context.Context, uid uint32) error {
	if os.Getuid() != 0 {
		return nil
	}
	return confine.EndUID(ctx, uid)
}

// stopUID stops what runs as a machine's uid. Without root only the agent stands still.
func stopUID(ctx context.Context, uid uint32) error {
	if os.Getuid() != 0 {
		return nil
	}
	return confine.StopUID(ctx, uid)
}

func continueUID(ctx context.Context, uid uint32) error {
	if os.Getuid() != 0 {
		return nil
	}
	return confine.ContinueUID(ctx, uid)
}
