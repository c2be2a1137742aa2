// Command session measures commands and files of a running sandbox through SPACE's API beside the same over bare TCP
// connections to the agent of the same machine, in turns, and prints one line of JSON. It makes an installation of its
// own and removes it. Needs root.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/bench/rig"
	"github.com/space-sandbox/space/client"
)

// options are what the two sides have in common.
type options struct {
	rig.Options
	n, execs, mib int
}

func main() {
	var o options
	o.Flags(512)
	flag.IntVar(&o.n, "n", 10, "rounds, each with one transfer of each kind on both sides")
	flag.IntVar(&o.execs, "execs", 20, "commands in a round, on both sides")
	flag.IntVar(&o.mib, "mib", 64, "MiB of a transfer")
	flag.Parse()
	rig.Main("session", func(ctx context.Context) error { return run(ctx, o) })
}

func run(ctx context.Context, o options) (err error) {
	p, err := rig.Install(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Remove()) }()
	made, err := p.Create(ctx)
	if err != nil {
		return err
	}
	d, err := newDirect(ctx, p.Dir, made.Sandbox.ID)
	if err != nil {
		return err
	}
	b := &bench{client: p.Client, box: made.Sandbox.ID, direct: d, content: make([]byte, o.mib<<20)}
	rand.NewChaCha8([32]byte{1}).Read(b.content) // the same in every run; never fails
	sum := sha256.Sum256(b.content)
	b.sum = hex.EncodeToString(sum[:])
	m := rig.Measurements{}
	for round := range o.n + 1 { // the first opens connections and warms the guest, and does not count
		one := rig.Measurements{}
		if err := b.round(ctx, one, o.execs); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		f := one.Figures()
		fmt.Fprintf(os.Stderr, "round %d: exec %.1f ms, bare %.1f; put %.0f, bare %.0f; get %.0f, bare %.0f\n", round, f["exec_ms"].P50,
			f["bare_exec_ms"].P50, f["put_ms"].P50, f["bare_put_ms"].P50, f["get_ms"].P50, f["bare_get_ms"].P50)
		if round > 0 {
			for name, values := range one {
				m[name] = append(m[name], values...)
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report(o, p, m))
}

func report(o options, p *rig.Product, m rig.Measurements) rig.Result {
	figures := m.Figures()
	conditions := p.Conditions()
	conditions["command"], conditions["transfer_mib"] = command, o.mib
	return rig.Result{Bench: "session", Conditions: conditions, Figures: figures, Ratios: map[string]float64{
		"exec_p50_vs_bare": figures["exec_ms"].P50 / figures["bare_exec_ms"].P50,
		"exec_p95_vs_bare": figures["exec_ms"].P95 / figures["bare_exec_ms"].P95,
		"put_vs_bare":      figures["put_ms"].P50 / figures["bare_put_ms"].P50,
		"get_vs_bare":      figures["get_ms"].P50 / figures["bare_get_ms"].P50,
	}}
}

// command is what is run: a program that says something, so that its output has to come back too.
const command = "/bin/echo hello"

// bench is the two ways to one machine.
type bench struct {
	client  *client.Client
	box     string
	direct  *direct
	content []byte
	sum     string
}

// round measures everything once on either side, in turns.
func (b *bench) round(ctx context.Context, m rig.Measurements, execs int) error {
	for range execs {
		if err := errors.Join(b.directExec(ctx, m), b.exec(ctx, m)); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{{"bare_put_ms", b.directPut}, {"put_ms", b.put}, {"bare_get_ms", b.directGet}, {"get_ms", b.get}} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		m.Add(step.name, map[string]float64{"": time.Since(begin).Seconds() * 1e3})
	}
	return nil
}

func (b *bench) exec(ctx context.Context, m rig.Measurements) error {
	begin := time.Now()
	res, err := b.client.Exec(ctx, b.box, apiv1.Exec{Argv: []string{"/bin/echo", "hello"}})
	took := time.Since(begin)
	if err != nil {
		return err
	}
	if res.ExitCode == nil || *res.ExitCode != 0 || res.Stdout != "hello\n" {
		return fmt.Errorf("exec: %+v", res)
	}
	m.Add("exec", map[string]float64{"_ms": took.Seconds() * 1e3})
	return nil
}

func (b *bench) directExec(ctx context.Context, m rig.Measurements) error {
	out, took, err := b.direct.exec(ctx, []string{"/bin/echo", "hello"})
	if err != nil || string(out) != "hello\n" {
		return errors.Join(err, fmt.Errorf("bare exec: %q", out))
	}
	m.Add("bare_exec", map[string]float64{"_ms": took.Seconds() * 1e3})
	return nil
}

func (b *bench) put(ctx context.Context) error {
	w, err := b.client.WriteFile(ctx, b.box, "api", bytes.NewReader(b.content), client.FileOptions{Size: int64(len(b.content))})
	if err == nil && w.SHA256 != b.sum {
		err = fmt.Errorf("stored %s, sent %s", w.SHA256, b.sum)
	}
	return err
}

func (b *bench) directPut(ctx context.Context) error {
	sum, err := b.direct.put(ctx, b.content)
	if err == nil && sum != b.sum {
		err = fmt.Errorf("stored %s, sent %s", sum, b.sum)
	}
	return err
}

func (b *bench) get(ctx context.Context) error {
	f, err := b.client.ReadFile(ctx, b.box, "api", client.FileOptions{})
	if err != nil {
		return err
	}
	defer f.Close()
	same := &comparing{want: b.content}
	if _, err := io.Copy(same, f); err != nil {
		return err
	}
	return same.whole()
}

func (b *bench) directGet(ctx context.Context) error {
	same := &comparing{want: b.content}
	if err := b.direct.get(ctx, same); err != nil {
		return err
	}
	return same.whole()
}

// comparing fails at the first byte that is not the wanted one.
type comparing struct{ want []byte }

func (c *comparing) Write(p []byte) (int, error) {
	if len(p) > len(c.want) || !bytes.Equal(p, c.want[:len(p)]) {
		return 0, errors.New("other bytes came back")
	}
	c.want = c.want[len(p):]
	return len(p), nil
}

func (c *comparing) whole() error {
	if len(c.want) > 0 {
		return fmt.Errorf("%d bytes are missing", len(c.want))
	}
	return nil
}
