// Command space-agent is PID 1 of every guest. It comes with the initramfs, takes the machine's disk as its root and
// serves processes and files to the gateway.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/space-sandbox/space/internal/agent"
	"github.com/space-sandbox/space/internal/agent/machine"
	"github.com/space-sandbox/space/internal/rpc"
)

// version is set by the linker.
var version = "dev"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(os.Args) > 1 && os.Args[1] == fakeFlag {
		if err := runFake(os.Args[2:], log); err != nil {
			log.Error("the fake guest cannot go on", "error", err)
			os.Exit(1)
		}
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "space-agent", version, "runs only as PID 1 of a guest")
		os.Exit(2)
	}
	// Whoever boots a guest only to see whether it comes to life looks for this line.
	log.Info("space-agent starts", "version", version)
	err := run(context.Background(), log)
	machine.GiveUp(log, err)
}

// run boots the guest and serves it. It returns only when the guest cannot go on.
func run(ctx context.Context, log *slog.Logger) error {
	machine.IgnoreSignals()
	if err := machine.LimitAgentMemory(); err != nil {
		return err
	}
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
