package rig

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Main is the main function of a benchmark: run's context ends with SIGINT and SIGTERM, and its error is the process's.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Flags defines the flags of what is measured. memory is the default size of a machine in MiB.
func (o *Options) Flags(memory int) {
	flag.StringVar(&o.Space, "space", "bin/space", "the product")
	flag.StringVar(&o.Assets, "assets", "", "bundle made by space assets build, with the template mini")
	flag.IntVar(&o.Memory, "memory", memory, "MiB of a machine")
	flag.IntVar(&o.Disk, "disk", 1024, "MiB of a machine's disk")
}
