package machine

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/guestos/bootconf"
)

// Booted is a guest that is ready to be served.
type Booted struct {
	Config   bootconf.Config
	Machine  *Machine
	Reaper   *Reaper
	Listener net.Listener
	// Stages says how long the kernel took to start PID 1, then each step of Boot.
	Stages []agent.Stage
}

// Boot turns the initramfs into a running guest. It may be called once, as PID 1. After an error the machine is of
// no use: the caller reports it on the console and exits, which ends the machine.
func Boot(ctx context.Context, log *slog.Logger) (*Booted, error) {
	b := &booter{log: log}
	b.stages = append(b.stages, agent.Stage{Name: "kernel", Took: sinceKernelStart()})
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"mounts", b.mountEarly},
		{"config", b.takeConfig},
		{"modules", b.loadModules},
		{"disk", b.mountDisk},
		{"resize", b.growDisk},
		{"root", b.switchRoot},
		{"groups", b.makeGroups},
		{"network", b.startNetwork},
		{"listen", b.listen},
	}
	for _, step := range steps {
		started := time.Now()
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("boot: %s: %w", step.name, err)
		}
		b.stages = append(b.stages, agent.Stage{Name: step.name, Took: time.Since(started)})
	}
	return &Booted{
		Config:   b.config,
		Machine:  &Machine{log: log, group: b.group},
		Reaper:   newReaper(log),
		Listener: b.listener,
		Stages:   b.stages,
	}, nil
}

// booter carries what one step makes to the steps after it.
type booter struct {
	log      *slog.Logger
	stages   []agent.Stage
	config   bootconf.Config
	group    *os.File // cgroup of user processes; nil where the kernel has no cgroup v2
	listener net.Listener
	readOnly bool // the disk is damaged
}

func (b *booter) takeConfig(context.Context) error {
	config, err := bootconf.Take(bootconf.Path)
	if err != nil {
		return err
	}
	b.config = config
	if config.Hostname == "" {
		return nil
	}
	return setKernelHostname(config.Hostname)
}
