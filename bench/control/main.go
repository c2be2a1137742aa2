// Command control measures the control plane alone: API v1, control and its SQLite store run as in production, in a
// process of their own on a file system of a disk, but node and gateway are fakes that answer at once. It prints where
// the time goes, and one line of JSON at the end. It needs neither root nor a virtual machine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/space-sandbox/space/bench/rig"
)

// options are what is measured.
type options struct {
	dir     string
	n       [3]int // sandboxes at each of levels
	profile string
}

// levels are how many requests are under way at once.
func levels() [3]int { return [3]int{1, 10, 50} }

// serveArg makes this program the measured process.
const serveArg = "serve"

func main() {
	if len(os.Args) == 3 && os.Args[1] == serveArg {
		if err := serve(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.dir, "dir", "", "where the store is made; it must be on a disk (default: the working directory)")
	flag.IntVar(&o.n[0], "n1", 300, "sandboxes that are created and deleted one at a time")
	flag.IntVar(&o.n[1], "n10", 1500, "sandboxes at concurrency 10")
	flag.IntVar(&o.n[2], "n50", 5000, "sandboxes at concurrency 50")
	flag.StringVar(&o.profile, "profile", "", "keep the CPU profile of the creates at concurrency 50 in this file (for go tool pprof)")
	flag.Parse()
	rig.Main("control", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	place, err := makePlace(o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, place.remove()) }()
	if err := place.measure(); err != nil {
		return err
	}
	r, err := startRig(ctx, place)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	res := results{figures: map[string]any{}}
	if err := r.warm(ctx); err != nil {
		return err
	}
	for i, level := range levels() {
		if err := r.level(ctx, level, o.n[i], i == len(o.n)-1, &res); err != nil {
			return fmt.Errorf("concurrency %d: %w", level, err)
		}
	}
	if o.profile != "" {
		if err := os.WriteFile(o.profile, res.profile, 0o600); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(rig.Result{Bench: "control", Conditions: r.conditions(o), Figures: res.figures, Ratios: res.ratios()})
}

func (r *controlRig) conditions(o options) map[string]any {
	return map[string]any{"file_system": r.place.fsType, "device": r.place.device, "device_kind": r.place.kind, "fsync_ms": r.place.fsync,
		"synchronous": "FULL", "host_cpus": runtime.NumCPU(), "loadavg_before": r.place.load, "loadavg_after": rig.LoadAverage(),
		"fake":        "node and gateway: they answer at once and tell of every machine, over unix sockets as the real ones",
		"real":        "HTTP over TCP on loopback, API v1, control, SQLite store: one process, wired as space control",
		"same_cpus":   "the clients and both fakes run on the same CPUs, in another process",
		"measured":    "POST /v1/sandboxes?wait until running; DELETE ?wait until deleted",
		"sandboxes_n": o.n, "concurrency": levels()}
}
