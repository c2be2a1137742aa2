package operation_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestClaimEnds: the commit of the first step may end the operation; its body's steps do not run then.
func TestClaimEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(op *operation.Operation){
		"no change": func(op *operation.Operation) { op.Succeed(time.Now()) },
		"refused":   func(op *operation.Operation) { op.Fail(sandbox.Errorf(sandbox.CodeInvalidState, "no"), time.Now()) },
		"canceled":  func(op *operation.Operation) { op.Fail(sandbox.Errorf(sandbox.CodeCanceled, "no"), time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecord()
			e := newEngine(r)
			op := submit(t, e, r)
			var want operation.Operation
			got, err := e.Run(t.Context(), operation.Task{ID: op.ID,
				Claim: func(ctx context.Context, op *operation.Operation) error {
					end(op)
					want = *op
					return r.SaveOperation(ctx, *op)
				},
				Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
					err := run.Step(ctx, "one", func(context.Context) error { t.Error("the step ran"); return nil })
					if err == nil || !run.Over() {
						t.Errorf("the first step: %v, over %v", err, run.Over())
					}
					if err := run.Step(ctx, "two", func(context.Context) error { t.Error("the next step ran"); return nil }); err == nil {
						t.Error("the next step succeeded")
					}
					return operation.Outcome{Err: errors.New("this counts for nothing")}
				}})
			if err != nil || got.State != want.State || got.NoChange != want.NoChange || len(got.Steps) != 0 || r.get(op.ID).State != want.State {
				t.Errorf("%+v %v, want %+v", got, err, want)
			}
			if e.Waiting(op.ID) {
				t.Error("it waits still")
			}
		})
	}
}

// TestSubmitEnds: an operation that had nothing to change has ended when Submit returns.
func TestSubmitEnds(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op, err := e.Submit(t.Context(), "pause", operation.Resource{Type: "sandbox", ID: "x"}, "input", func(ctx context.Context, op *operation.Operation) error {
		op.Succeed(time.Now())
		return r.insert(ctx, op)
	})
	if err != nil || op.State != operation.Succeeded || !op.NoChange || op.Input != "input" || op.StartedAt.IsZero() {
		t.Errorf("%+v %v", op, err)
	}
	if got, err := e.Wait(t.Context(), op.ID, time.Hour); err != nil || got.State != operation.Succeeded {
		t.Errorf("Wait: %+v %v", got, err)
	}
}

// TestClaimIsTriedAgain: a record that cannot be written for a while makes no operation fail.
func TestClaimIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	r.mu.Lock()
	r.fail = 2
	r.mu.Unlock()
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "one", nothing)}
	}})
	if err != nil || got.State != operation.Succeeded || len(got.Steps) != 1 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestAttempts: a step whose failures pass is tried again, and says how often.
func TestAttempts(t *testing.T) {
	t.Parallel()
	passing, final := errors.New("not now"), sandbox.Errorf(sandbox.CodePoolFull, "never")
	again := func(err error) bool { return errors.Is(err, passing) }
	run := func(policy operation.Policy, results ...error) (operation.Operation, int) {
		r := newRecord()
		e := newEngine(r)
		op := submit(t, e, r)
		calls := 0
		got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
			return operation.Outcome{Err: run.Try(ctx, "one", policy, func(context.Context) error {
				calls++
				return results[min(calls, len(results))-1]
			})}
		}})
		if err != nil {
			t.Error(err)
		}
		if row := r.get(op.ID); row.State != got.State || row.Steps[0].Attempts != got.Steps[0].Attempts {
			t.Errorf("the record %+v, the answer %+v", row, got)
		}
		return got, calls
	}
	if op, calls := run(operation.Policy{Again: again}, passing, passing, nil); op.State != operation.Succeeded || calls != 3 || op.Steps[0].Attempts != 2 || op.Steps[0].Error != "" {
		t.Errorf("two failures that pass: %d calls, %+v", calls, op)
	}
	if op, calls := run(operation.Policy{Again: again}, passing, final); op.State != operation.Failed || calls != 2 || op.Error.Code != sandbox.CodePoolFull {
		t.Errorf("one that does not pass: %d calls, %+v", calls, op)
	}
	if op, calls := run(operation.Policy{}, passing); op.State != operation.Failed || calls != 1 {
		t.Errorf("without a policy: %d calls, %+v", calls, op)
	}
	op, calls := run(operation.Policy{Again: again, Deadline: 100 * time.Millisecond}, passing)
	if op.State != operation.Failed || op.Error.Code != sandbox.CodeDeadline || calls < 2 || op.Error.Remedy == "" || op.Error.Cause == "" {
		t.Errorf("a deadline: %d calls, %+v", calls, op.Error)
	}
	op, _ = run(operation.Policy{Again: again, Deadline: time.Millisecond, Overdue: sandbox.Errorf(sandbox.CodeGuestNotReady, "late")}, passing)
	if op.Error.Code != sandbox.CodeGuestNotReady || !errors.Is(op.Error, passing) {
		t.Errorf("a deadline with an error of its own: %+v", op.Error)
	}
}

// TestWake: what was waited for ends the pause between attempts.
func TestWake(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	woken := make(chan struct{})
	close(woken)
	calls := 0
	began := time.Now()
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		policy := operation.Policy{Again: func(error) bool { return true }, Wake: func() <-chan struct{} { return woken }}
		return operation.Outcome{Err: run.Try(ctx, "one", policy, func(context.Context) error {
			if calls++; calls < 100 { // with pauses it would take minutes
				return errors.New("not yet")
			}
			return nil
		})}
	}})
	if err != nil || got.State != operation.Succeeded || calls != 100 {
		t.Errorf("%d calls in %s: %+v %v", calls, time.Since(began), got, err)
	}
}

// TestCancelRunning: a task that says that it is safe may be interrupted while it runs.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	canceled := make(chan operation.Operation, 1)
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Cancelable: true, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "one", func(ctx context.Context) error {
			go func() {
				op, err := e.Cancel(t.Context(), op.ID)
				if err != nil {
					t.Error(err)
				}
				canceled <- op
			}()
			<-ctx.Done()
			return errors.New("what an interrupted call says")
		})}
	}})
	if err != nil || got.State != operation.Canceled || got.Error.Cause == "" || got.Error.Message == "" {
		t.Errorf("%+v %v", got, err)
	}
	if op := <-canceled; op.State != operation.Canceled {
		t.Errorf("Cancel: %s", op.State)
	}
}

// TestGoesOn: after a restart a body can see which steps were done, and the claim is made again.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := operation.New(operation.Config{Store: r, Now: time.Now, Logger: slog.New(slog.DiscardHandler), ProgressDelay: time.Millisecond})
	op := submit(t, e, r)
	did := map[string]int{}
	claims := 0
	task := func(cut func(ctx context.Context) error) operation.Task {
		return operation.Task{ID: op.ID, Claim: func(ctx context.Context, op *operation.Operation) error {
			claims++
			return r.SaveOperation(ctx, *op)
		}, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
			if !run.Done("one") {
				if err := run.Step(ctx, "one", func(context.Context) error { did["one"]++; return nil }); err != nil {
					return operation.Outcome{Err: err}
				}
			}
			return operation.Outcome{Err: run.Step(ctx, "two", func(ctx context.Context) error { did["two"]++; return cut(ctx) })}
		}}
	}
	ctx, stop := context.WithCancel(t.Context())
	_, err := e.Run(ctx, task(func(ctx context.Context) error {
		if !eventually(t, func() bool { return len(r.get(op.ID).Steps) == 2 }) {
			t.Error("the progress was never recorded")
		}
		stop()
		return ctx.Err()
	}))
	if !errors.Is(err, operation.ErrStopping) {
		t.Fatalf("Run: %v", err)
	}
	next := newEngine(r)
	if err := next.Recover(t.Context(), func(operation.Operation) {}); err != nil {
		t.Fatal(err)
	}
	got, err := next.Run(t.Context(), task(func(context.Context) error { return nil }))
	if err != nil || got.State != operation.Succeeded || got.Attempt != 2 || did["one"] != 1 || did["two"] != 2 || claims != 2 {
		t.Errorf("%+v %v; done %v, %d claims", got, err, did, claims)
	}
	if row := r.get(op.ID); row.Attempt != 2 || row.Steps[1].State != operation.Failed || row.Steps[2].State != operation.Succeeded {
		t.Errorf("the record: %+v", row)
	}
}

// eventually waits for what no event announces.
func eventually(t *testing.T, ok func() bool) bool {
	t.Helper()
	deadline := time.After(10 * time.Second)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-deadline:
			return false
		}
	}
	return true
}
