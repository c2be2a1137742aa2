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
	"path/filepath"
	"strconv"
	"time"

	"github.com/space-sandbox/space/bench/rig"
)

// options are what the two sides have in common.
type options struct {
	rig.Options
	bare string
	n    int
}

func main() {
	var o options
	o.Flags(256)
	flag.StringVar(&o.bare, "bare", "bin/bare", "the bare sequence")
	flag.IntVar(&o.n, "n", 10, "rounds, each one of both")
	flag.Parse()
	rig.Main("boot", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	p, err := rig.Install(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Remove()) }()
	template, err := p.Client.Template(ctx, "mini")
	if err != nil {
		return err
	}
	bare, err := newBare(p.Dir, template.Digest, o, p.Accel())
	if err != nil {
		return err
	}
	// The first of each warms the host's page cache and does not count.
	m := rig.Measurements{}
	for round := range o.n + 1 {
		stages, err := bare.boot(ctx)
		if err != nil {
			return fmt.Errorf("bare, round %d: %w", round, err)
		}
		steps, err := create(ctx, p)
		if err != nil {
			return fmt.Errorf("create, round %d: %w", round, err)
		}
		fmt.Fprintf(os.Stderr, "round %d: bare %.0f ms, create to ready %.0f ms\n", round, stages["total_ms"], steps["total_ms"])
		if round > 0 {
			m.Add("bare_", stages)
			m.Add("create_", steps)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report(p, m))
}

func report(p *rig.Product, m rig.Measurements) rig.Result {
	figures := m.Figures()
	return rig.Result{Bench: "boot", Conditions: p.Conditions(), Figures: figures,
		Ratios: map[string]float64{"create_to_ready_vs_bare": figures["create_total_ms"].P50 / figures["bare_total_ms"].P50}}
}

// create makes a sandbox and deletes it; it returns milliseconds by step of the operation and as the caller saw it.
func create(ctx context.Context, p *rig.Product) (map[string]float64, error) {
	begin := time.Now()
	made, err := p.Create(ctx)
	took := time.Since(begin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := p.Delete(ctx, made.Sandbox.ID); err != nil {
			fmt.Fprintln(os.Stderr, "boot: delete:", err) // Remove finds what is left
		}
	}()
	steps := map[string]float64{"total_ms": took.Seconds() * 1e3}
	for _, s := range made.Operation.Steps {
		if s.MS != nil {
			steps["step_"+s.Name+"_ms"] = *s.MS
		}
	}
	return steps, nil
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
		"-dir", filepath.Join(dataDir, "pool"), "-memory", strconv.Itoa(o.Memory), "-disk", strconv.Itoa(o.Disk), "-accel", accel}}, nil
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
