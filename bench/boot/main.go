// Command boot measures how long a sandbox takes from the call that creates it to ready, beside a bare QEMU that boots
// the same guest (bench/bare), in turns, and prints one line of JSON. It makes an installation of its own and removes
// it. Needs root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// options are what the two sides have in common.
type options struct {
	space, bare, assets string
	n, memory, disk     int
}

func main() {
	var o options
	flag.StringVar(&o.space, "space", "bin/space", "the product")
	flag.StringVar(&o.bare, "bare", "bin/bare", "the bare sequence")
	flag.StringVar(&o.assets, "assets", "", "bundle made by space assets build, with the template mini")
	flag.IntVar(&o.n, "n", 10, "rounds, each one of both")
	flag.IntVar(&o.memory, "memory", 256, "MiB of a machine")
	flag.IntVar(&o.disk, "disk", 1024, "MiB of a machine's disk")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	p, err := install(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	template, err := p.client.Template(ctx, "mini")
	if err != nil {
		return err
	}
	bare, err := newBare(p.dir, template.Digest, o, p.accel())
	if err != nil {
		return err
	}
	// The first of each warms the host's page cache and does not count.
	m := measurements{}
	for round := range o.n + 1 {
		stages, err := bare.boot(ctx)
		if err != nil {
			return fmt.Errorf("bare, round %d: %w", round, err)
		}
		steps, err := p.create(ctx, o)
		if err != nil {
			return fmt.Errorf("create, round %d: %w", round, err)
		}
		fmt.Fprintf(os.Stderr, "round %d: bare %.0f ms, create to ready %.0f ms\n", round, stages["total_ms"], steps["total_ms"])
		if round > 0 {
			m.add("bare_", stages)
			m.add("create_", steps)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report(o, p, m))
}

// result is the last line that a benchmark prints.
type result struct {
	Bench      string             `json:"bench"`
	Conditions map[string]any     `json:"conditions"`
	Figures    map[string]figure  `json:"figures"`
	Ratios     map[string]float64 `json:"ratios"`
}

func report(o options, p *product, m measurements) result {
	figures := m.figures()
	return result{
		Bench: "boot",
		Conditions: map[string]any{"driver": "qemu", "isolation": p.isolation, "vmm_version": p.version, "pool": p.pool,
			"template": "mini", "vcpus": 1, "memory_mib": o.memory, "disk_mib": o.disk, "host_cpus": runtime.NumCPU()},
		Figures: figures,
		Ratios:  map[string]float64{"create_to_ready_vs_bare": figures["create_total_ms"].P50 / figures["bare_total_ms"].P50},
	}
}

// bareCommand runs the bare sequence on the installation's own files.
type bareCommand struct {
	path string
	args []string
}

func newBare(dataDir, digest string, o options, accel string) (*bareCommand, error) {
	files, err := guestFiles(filepath.Join(dataDir, "node", "guest"))
	if err != nil {
		return nil, err
	}
	root, err := templateDisk(filepath.Join(dataDir, "pool", "templates"), digest)
	if err != nil {
		return nil, err
	}
	return &bareCommand{path: o.bare, args: []string{"-kernel", files.kernel, "-initrd", files.initramfs, "-template", root,
		"-dir", filepath.Join(dataDir, "pool"), "-memory", strconv.Itoa(o.memory), "-disk", strconv.Itoa(o.disk), "-accel", accel}}, nil
}

// boot returns milliseconds by stage.
func (b *bareCommand) boot(ctx context.Context) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, b.path, b.args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var stages map[string]float64
	return stages, json.Unmarshal(out, &stages)
}
