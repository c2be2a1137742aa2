// Command soak lets thousands of sandboxes live and die one after another in a real installation, and looks after each
// round, when nothing is left, at what its processes hold: memory, goroutines, descriptors, kernel objects. It fails when
// something grows. First with microVMs, then with the fake driver, whose machines are processes of this host. The last
// line is one JSON object. Needs root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/space-sandbox/space/bench/rig"
)

// options are how much is lived.
type options struct {
	space, assets string
	qemu, fake    plan
	warm, least   time.Duration
	settle        time.Duration
}

// plan is what happens with one driver.
type plan struct {
	driver string
	lives  int // at least
	round  int // lives between two looks
	atOnce int
}

func main() {
	o := options{qemu: plan{driver: "qemu"}, fake: plan{driver: "fake"}}
	flag.StringVar(&o.space, "space", "bin/space", "the product")
	flag.StringVar(&o.assets, "assets", "", "bundle made by space assets build, with the template mini")
	flag.IntVar(&o.qemu.lives, "qemu", 4, "lives on microVMs; 0: none")
	flag.IntVar(&o.qemu.round, "qemu-round", 2, "of them between two looks")
	flag.IntVar(&o.qemu.atOnce, "qemu-at-once", 2, "microVMs at a time")
	flag.IntVar(&o.fake.lives, "fake", 320, "lives on the fake driver; 0: none")
	flag.IntVar(&o.fake.round, "fake-round", 20, "of them between two looks")
	flag.IntVar(&o.fake.atOnce, "fake-at-once", 8, "fake machines at a time")
	flag.DurationVar(&o.warm, "warm", 10*time.Second, "how long fake machines live and die before it counts")
	flag.DurationVar(&o.settle, "settle", 0, fmt.Sprintf("rest before each look; with less than %s, only much more memory counts as growth", holdTime))
	flag.DurationVar(&o.least, "least", 0, "go on with the fake driver until so much time has passed since the start")
	flag.Parse()
	rig.Main("soak", func(ctx context.Context) error {
		flat, err := run(ctx, o)
		if err == nil && !flat {
			err = errors.New("not flat; see above for what has grown")
		}
		return err
	})
}

func run(ctx context.Context, o options) (flat bool, err error) {
	began := time.Now()
	figures := map[string]any{}
	conditions := map[string]any{"loadavg_before": rig.LoadAverage(), "rule": rule(o.settle), "settle_seconds": o.settle.Seconds()}
	flat = true
	for _, p := range []plan{o.qemu, o.fake} {
		if p.lives <= 0 {
			continue
		}
		until, warm := began, time.Duration(0)
		if p.driver == "fake" {
			until, warm = began.Add(o.least), o.warm
		}
		result, details, err := soak(ctx, o, p, warm, until)
		if err != nil {
			return false, fmt.Errorf("%s: %w", p.driver, err)
		}
		conditions[p.driver] = details
		for name, v := range result.figures {
			figures[p.driver+"_"+name] = v
		}
		flat = flat && result.flat
	}
	figures["flat"] = flat
	conditions["loadavg_after"] = rig.LoadAverage()
	return flat, json.NewEncoder(os.Stdout).Encode(rig.Result{Bench: "soak", Conditions: conditions, Figures: figures, Ratios: map[string]float64{}})
}

// outcome is what one driver's part of the run came to.
type outcome struct {
	figures map[string]any
	flat    bool
}

// soak runs one installation through its lives, until there were enough of them and until has passed. First it warms up, by
// one round at least: a runtime sizes its heap, and connections that are gone have timers that hold memory for a while.
func soak(ctx context.Context, o options, p plan, warm time.Duration, until time.Time) (_ outcome, details map[string]any, err error) {
	product, err := rig.Install(ctx, rig.Options{Space: o.space, Assets: o.assets, Driver: p.driver, Memory: 128, Disk: 256})
	if err != nil {
		return outcome{}, nil, err
	}
	defer func() { err = errors.Join(err, product.Remove()) }()
	l := &lives{product: product, took: rig.Measurements{}}
	for enough := time.Now().Add(warm); ; {
		if err := l.round(ctx, p.round, p.atOnce); err != nil {
			return outcome{}, nil, err
		}
		if !time.Now().Before(enough) {
			break
		}
	}
	l.took = rig.Measurements{}
	began := time.Now()
	s := &samples{product: product, series: map[string][]float64{}}
	lived := 0
	for ; lived < p.lives || time.Now().Before(until); lived += p.round {
		if err := l.round(ctx, p.round, p.atOnce); err != nil {
			return outcome{}, nil, fmt.Errorf("after %d lives: %w", lived, err)
		}
		if err := rest(ctx, o.settle); err != nil {
			return outcome{}, nil, err
		}
		if err := s.take(ctx); err != nil {
			return outcome{}, nil, fmt.Errorf("after %d lives: %w", lived+p.round, err)
		}
	}
	seconds := time.Since(began).Seconds()
	out := outcome{figures: map[string]any{"lives": lived, "seconds": seconds, "lives_per_second": float64(lived) / seconds}, flat: true}
	for name, f := range l.took.Figures() {
		out.figures[name] = f
	}
	verdicts := judge(s.series, lived, o.settle)
	out.figures["held"] = verdicts
	out.flat = show(os.Stderr, p.driver, lived, verdicts)
	details = product.Conditions()
	maps.Copy(details, map[string]any{"at_once": p.atOnce, "lives_between_looks": p.round, "warm_seconds": warm.Seconds(), "life": l.story()})
	return out, details, nil
}

// holdTime is how long net/http holds what it knows of an HTTP/2 connection that has ended: a timer of 15 s for the next
// ping is not stopped. What the gateway has in memory without a rest grows with the speed of the host.
const holdTime = 16 * time.Second

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
