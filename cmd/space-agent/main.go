// Command space-agent is PID 1 of every guest. It comes with the initramfs, takes the machine's disk as its root and
// serves processes and files to the gateway.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/agent/machine"
	"github.com/space-sandbox/space/internal/rpc"
)

// version is set by the linker.
var version = "dev"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "space-agent", version, "runs only as PID 1 of a guest")
		os.Exit(2)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := run(context.Background(), log)
	// The end of PID 1 is the end of the machine; the console keeps the reason.
	log.Error("the guest cannot go on", "error", err)
	os.Exit(1)
}

func run(ctx context.Context, log *slog.Logger) error {
	machine.IgnoreSignals()
	limitMemory()
	booted, err := machine.Boot(ctx, log)
	if err != nil {
		return err
	}
	server, err := agent.New(agent.Config{
		Token:   booted.Config.Token,
		Version: version,
		Stages:  booted.Stages,
		Machine: booted.Machine,
		Reaper:  booted.Reaper,
		Logger:  log,
	})
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- booted.Reaper.Run() }()
	go func() { failed <- rpc.Serve(ctx, booted.Listener, server.Handler()) }()
	return <-failed
}

// limitMemory makes the collector work harder before the agent's memory becomes a burden for the guest: a quarter of
// the machine's, half of which may be spools.
func limitMemory() {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		debug.SetMemoryLimit(int64(info.Totalram*uint64(info.Unit)) / 4)
	}
}
