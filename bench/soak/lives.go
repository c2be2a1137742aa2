package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/bench/rig"
	"github.com/space-sandbox/space/client"
)

// stepLimit is long: a busy machine is no fault.
const stepLimit = 3 * time.Minute

// lives makes sandboxes, uses and deletes them.
type lives struct {
	product *rig.Product

	mu   sync.Mutex
	took rig.Measurements
}

// story says what happens in each life.
func (l *lives) story() string {
	return "create, exec, pause, resume, exec, delete; every fourth dies in the middle: deleted while it is created, while paused"
}

// round lives n lives, some at once, and returns when nothing of them is left. All of them are ended, also on errors.
func (l *lives) round(ctx context.Context, n, atOnce int) error {
	numbers := make(chan int)
	var mu sync.Mutex
	var first error
	failed := 0
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range numbers {
				if err := l.live(ctx, i); err != nil {
					mu.Lock()
					first, failed = cmp.Or(first, err), failed+1
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	if failed > 0 {
		return fmt.Errorf("%d of %d lives failed, the first: %w", failed, n, first)
	}
	return nil
}

// live is one life.
func (l *lives) live(ctx context.Context, number int) (err error) {
	if number%8 == 7 {
		return l.cutShort(ctx)
	}
	made, err := l.product.Create(ctx)
	if err != nil {
		return err
	}
	id := made.Sandbox.ID
	defer func() {
		err = errors.Join(err, l.timed("delete_ms", func() error { return l.product.Delete(ctx, id) }))
	}()
	l.note("create_ms", made.Operation.EndedAt.Sub(made.Operation.CreatedAt))
	if err := l.exec(ctx, id); err != nil {
		return err
	}
	if err := l.timed("pause_ms", func() error { return l.pause(ctx, id) }); err != nil || number%8 == 3 {
		return err
	}
	if err := l.timed("resume_ms", func() error { return l.resume(ctx, id) }); err != nil {
		return err
	}
	return l.exec(ctx, id)
}

// cutShort deletes a sandbox while it is being created.
func (l *lives) cutShort(ctx context.Context) error {
	made, err := l.product.Accept(ctx)
	if err != nil {
		return err
	}
	return l.product.Delete(ctx, made.Sandbox.ID)
}

func (l *lives) exec(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	return l.timed("exec_ms", func() error {
		res, err := l.product.Client.Exec(ctx, id, apiv1.Exec{Argv: []string{"/bin/echo", "hello"}, Cwd: "/"})
		if err == nil && (res.ExitCode == nil || *res.ExitCode != 0 || res.Stdout != "hello\n") {
			err = fmt.Errorf("exec in %s: state %s, standard output %q, error %+v", id, res.State, res.Stdout, res.Error)
		}
		return err
	})
}

func (l *lives) pause(ctx context.Context, id string) error {
	res, err := l.product.Client.PauseSandbox(ctx, id, client.Wait(stepLimit))
	if err == nil && res.Sandbox.State != "paused" {
		err = fmt.Errorf("sandbox %s is %s after a pause", id, res.Sandbox.State)
	}
	return err
}

func (l *lives) resume(ctx context.Context, id string) error {
	res, err := l.product.Client.ResumeSandbox(ctx, id, client.Wait(stepLimit))
	if err == nil && res.Sandbox.State != "running" {
		err = fmt.Errorf("sandbox %s is %s after a resume", id, res.Sandbox.State)
	}
	return err
}

// timed notes how long do took when it succeeds.
func (l *lives) timed(name string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	l.note(name, time.Since(began))
	return nil
}

func (l *lives) note(name string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took.Add(name, map[string]float64{"": took.Seconds() * 1e3})
}
