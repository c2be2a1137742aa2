package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/space-sandbox/space/bench/rig"
)

// samples looks at what the installation holds while no sandbox is alive.
type samples struct {
	product *rig.Product
	series  map[string][]float64 // by what is held; one value a round
}

// Of several looks the lowest counts: connections that are closed, goroutines that end and garbage that is collected in
// the next moments are no leak.
const (
	looks    = 6
	lookTick = 150 * time.Millisecond
)

// take adds one value to each series.
func (s *samples) take(ctx context.Context) error {
	lowest := map[string]float64{}
	tick := time.NewTicker(lookTick)
	defer tick.Stop()
	for range looks {
		now, err := s.look(ctx)
		if err != nil {
			return err
		}
		for name, v := range now {
			if old, known := lowest[name]; !known || v < old {
				lowest[name] = v
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for name, v := range lowest {
		s.series[name] = append(s.series[name], v)
	}
	return nil
}

// look reads everything once.
func (s *samples) look(ctx context.Context) (map[string]float64, error) {
	out := map[string]float64{}
	processes, err := s.product.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		out[p.Name+" rss_kib"] = float64(p.RSSKiB)
		out[p.Name+" descriptors"] = float64(p.Descriptors)
		out[p.Name+" threads"] = float64(p.Threads)
	}
	text, err := s.product.Client.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	if err := metrics(text, out); err != nil {
		return nil, err
	}
	ledger, err := s.product.Client.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	out["ledger drift"] = float64(ledger.Drift)
	for kind, n := range ledger.Kinds {
		out["ledger "+kind] = float64(n.Live)
	}
	return out, nil
}

// metrics reads what the runtimes of the three parts say of themselves.
func metrics(text []byte, out map[string]float64) error {
	found := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		name, labels, _ := strings.Cut(series, "{")
		short := map[string]string{"go_goroutines": " goroutines", "go_memstats_heap_alloc_bytes": " heap_kib"}[name]
		process, ok := strings.CutPrefix(labels, `process="`)
		if short == "" || !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return fmt.Errorf("metrics: %q: %w", lines.Text(), err)
		}
		if strings.HasSuffix(short, "kib") {
			v /= 1024
		}
		out[strings.TrimSuffix(process, `"}`)+short] = v
		found++
	}
	if found != 6 {
		return fmt.Errorf("metrics: %d of 6 values of the three parts were shown", found)
	}
	return nil
}
