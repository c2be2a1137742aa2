package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/bench/rig"
	"github.com/space-sandbox/space/client"
)

// patience is the longest wait that is asked for; reaching it is a failure.
const patience = 60 * time.Second

// results is what is known so far.
type results struct {
	figures map[string]any
	profile []byte
}

// The limits of issue and design: 500 creates in a second, the slowest in a hundred 250 ms, three commits for one alone.
const (
	wantPerSecond = 500.0
	wantP99       = 250.0
	wantCommits   = 3.0
)

// ratios compares with the limits; all should be at most 1.
func (r *results) ratios() map[string]float64 {
	rate, _ := r.figures["creates_per_second_c50"].(float64)
	create, _ := r.figures["create_ms_c50"].(rig.Figure)
	commits, _ := r.figures["commits_per_create_c1"].(float64)
	return map[string]float64{"limit_500_vs_creates_per_second_c50": wantPerSecond / rate, "create_p99_c50_vs_250_ms": create.P99 / wantP99,
		"commits_per_create_c1_vs_3": commits / wantCommits}
}

// warm opens connections and brings caches up; it does not count.
func (r *controlRig) warm(ctx context.Context) error {
	made, _, err := r.creates(ctx, 50, 200)
	if err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	_, err = r.deletes(ctx, 50, made)
	return err
}

// level measures creates and then their deletes at one concurrency.
func (r *controlRig) level(ctx context.Context, level, n int, profiled bool, res *results) error {
	suffix := fmt.Sprintf("_c%d", level)
	var made []string
	var m rig.Measurements
	create := func() (err error) { made, m, err = r.creates(ctx, level, n); return err }
	c, err := r.phase(ctx, n, func() (err error) {
		if !profiled {
			return create()
		}
		res.profile, err = r.server.profile(create)
		return err
	})
	if err != nil {
		return fmt.Errorf("creates: %w", err)
	}
	c.put(res.figures, "create", suffix)
	figures := m.Figures()
	res.figures["create_ms"+suffix] = figures["create"]
	for _, s := range stages() {
		res.figures["create_"+s+"_ms"+suffix] = figures[s]
	}
	var deleted rig.Measurements
	d, err := r.phase(ctx, n, func() (err error) { deleted, err = r.deletes(ctx, level, made); return err })
	if err != nil {
		return fmt.Errorf("deletes: %w", err)
	}
	d.put(res.figures, "delete", suffix)
	res.figures["delete_ms"+suffix] = deleted.Figures()["delete"]
	show(level, n, res.figures, figures)
	if profiled {
		return showProfile(os.Stderr, res)
	}
	return nil
}

// phase is what a number of calls took together.
type phase struct {
	n                      float64
	seconds, commits       float64
	serverCPU, clientCPU   float64 // seconds
	serverCPU0, clientCPU0 float64
}

func (r *controlRig) phase(ctx context.Context, n int, do func() error) (phase, error) {
	p := phase{n: float64(n)}
	before, err := r.commits(ctx)
	if err != nil {
		return p, err
	}
	if p.serverCPU0, p.clientCPU0, err = r.cpu(); err != nil {
		return p, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return p, err
	}
	p.seconds = time.Since(began).Seconds()
	server, own, err := r.cpu()
	if err != nil {
		return p, err
	}
	p.serverCPU, p.clientCPU = server-p.serverCPU0, own-p.clientCPU0
	after, err := r.commits(ctx)
	p.commits = after - before
	return p, err
}

func (p phase) put(figures map[string]any, what, suffix string) {
	figures[what+"s_per_second"+suffix] = p.n / p.seconds
	figures["commits_per_"+what+suffix] = p.commits / p.n
	figures["control_cpu_ms_per_"+what+suffix] = p.serverCPU / p.n * 1e3
	figures["clients_and_fakes_cpu_ms_per_"+what+suffix] = p.clientCPU / p.n * 1e3
}

// creates makes n sandboxes, level at a time, each until it runs.
func (r *controlRig) creates(ctx context.Context, level, n int) ([]string, rig.Measurements, error) {
	made := make([]string, n)
	m, err := atOnce(ctx, level, n, func(ctx context.Context, i int) (map[string]float64, error) {
		sent := time.Now()
		res, err := r.client.CreateSandbox(ctx, apiv1.CreateSandbox{Template: template}, client.Wait(patience))
		answered := time.Now()
		if err != nil {
			return nil, err
		}
		if res.Sandbox.State != "running" || res.Operation.State != "succeeded" {
			return nil, fmt.Errorf("sandbox %s is %s, its operation %s", res.Sandbox.ID, res.Sandbox.State, res.Operation.State)
		}
		made[i] = res.Sandbox.ID
		return split(sent, answered, res.Operation, r.visits.take(res.Sandbox.ID))
	})
	return made, m, err
}

func (r *controlRig) deletes(ctx context.Context, level int, ids []string) (rig.Measurements, error) {
	return atOnce(ctx, level, len(ids), func(ctx context.Context, i int) (map[string]float64, error) {
		sent := time.Now()
		res, err := r.client.DeleteSandbox(ctx, ids[i], client.Wait(patience))
		took := time.Since(sent)
		if err != nil {
			return nil, err
		}
		if res.Sandbox.State != "deleted" {
			return nil, fmt.Errorf("sandbox %s is %s", ids[i], res.Sandbox.State)
		}
		return map[string]float64{"delete": milliseconds(took)}, nil
	})
}

// atOnce calls do for 0 … n-1, level calls at a time, until one fails.
func atOnce(ctx context.Context, level, n int, do func(context.Context, int) (map[string]float64, error)) (rig.Measurements, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var mu sync.Mutex
	all := rig.Measurements{}
	var wg sync.WaitGroup
	for range level {
		wg.Go(func() {
			for i := range next {
				stages, err := do(ctx, i)
				if err != nil {
					cancel(err) // the first counts
					continue
				}
				mu.Lock()
				all.Add("", stages)
				mu.Unlock()
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, nil
}
