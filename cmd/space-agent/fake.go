package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/vmm/fake/fakeagent"
)

// fakeFlag comes first on the command line of an agent that the fake driver starts on the host.
const fakeFlag = "--fake"

// maxBootConfig bounds what is read of the boot configuration.
const maxBootConfig = 16 << 10

// runFake serves a fake machine: the listener is descriptor 3, the boot configuration comes on standard input. It
// returns when the machine has ended.
func runFake(args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("space-agent "+fakeFlag, flag.ContinueOnError)
	root := flags.String("root", "", "the machine's directory")
	memory := flags.Int("memory-mib", 0, "the machine's memory")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Getuid() == 0 || *root == "" || *memory <= 0 {
		return errors.New("a fake machine needs --root and --memory-mib, and must not be root")
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, maxBootConfig))
	if err != nil {
		return fmt.Errorf("boot configuration: %w", err)
	}
	config, err := bootconf.Parse(text)
	if err != nil {
		return err
	}
	socket := os.NewFile(3, "listener")
	listener, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	socket.Close()
	return serveFake(*root, *memory, config.Token, listener, log)
}

func serveFake(root string, memoryMiB int, token string, listener net.Listener, log *slog.Logger) error {
	server := &http.Server{Protocols: rpc.Protocols(), ReadHeaderTimeout: time.Minute}
	agent, err := fakeagent.New(fakeagent.Config{Token: token, Version: version, Root: root, MemoryMiB: memoryMiB, Logger: log,
		PowerOff: func() {
			if err := os.WriteFile(fakeagent.PoweredOff(root), nil, 0o600); err != nil {
				log.Warn("the power-off is not noted", "error", err)
			}
			_ = server.Close()
		}})
	if err != nil {
		return err
	}
	defer agent.Close()
	server.Handler = agent.Handler()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
