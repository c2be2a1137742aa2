package operation_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// record is a durable record of operations in memory.
type record struct {
	mu    sync.Mutex
	ops   map[sandbox.OperationID]operation.Operation
	saves int
	fail  int // so many saves fail
}

func (r *record) Operation(_ context.Context, id sandbox.OperationID) (operation.Operation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op, ok := r.ops[id]
	if !ok {
		return op, errMissing
	}
	return op, nil
}

var errMissing = errors.New("missing")

func (r *record) UnfinishedOperations(context.Context) ([]operation.Operation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []operation.Operation
	for _, op := range r.ops {
		if !op.State.Ended() {
			op.Steps = slices.Clone(op.Steps)
			out = append(out, op)
		}
	}
	return out, nil
}

func (r *record) SaveOperation(_ context.Context, op operation.Operation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail > 0 {
		r.fail--
		return errors.New("disk full")
	}
	r.saves++
	if !r.ops[op.ID].State.Ended() {
		r.ops[op.ID] = op
	}
	return nil
}

func (r *record) insert(_ context.Context, op *operation.Operation) error {
	return r.SaveOperation(context.Background(), *op)
}

func (r *record) get(id sandbox.OperationID) operation.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops[id]
}

func (r *record) saved() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saves
}

func newEngine(r *record) *operation.Engine {
	return operation.New(operation.Config{Store: r, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
}

func newRecord() *record { return &record{ops: map[sandbox.OperationID]operation.Operation{}} }

func submit(t *testing.T, e *operation.Engine, r *record) operation.Operation {
	t.Helper()
	op, err := e.Submit(t.Context(), "create", operation.Resource{Type: "sandbox", ID: "x"}, "", r.insert)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

func nothing(context.Context) error { return nil }

func TestRowBeforeAct(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	if got := r.get(op.ID); got.State != operation.Queued {
		t.Errorf("after Submit: %s", got.State)
	}
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		err := run.Step(ctx, "one", func(context.Context) error {
			if row := r.get(op.ID); row.State != operation.Running || len(row.Steps) != 1 || row.Steps[0].State != operation.Running {
				t.Errorf("inside the first step the row is %+v", row)
			}
			run.Record(operation.Step{Name: "one/part", State: operation.Succeeded})
			return nil
		})
		return operation.Outcome{Err: errors.Join(err, run.Step(ctx, "two", nothing))}
	}})
	if err != nil || got.State != operation.Succeeded || len(got.Steps) != 3 {
		t.Errorf("Run: %+v %v", got, err)
	}
	for _, s := range got.Steps {
		if s.State != operation.Succeeded {
			t.Errorf("step %+v", s)
		}
	}
	if row := r.get(op.ID); row.State != operation.Succeeded || len(row.Steps) != 3 {
		t.Errorf("the record: %+v", row)
	}
	if n := r.saved(); n != 3 {
		t.Errorf("%d writes, want accept, claim and end", n)
	}
}

func TestRefusedSubmitLeavesNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(newRecord())
	refusal := errors.New("no")
	var id sandbox.OperationID
	_, err := e.Submit(t.Context(), "create", operation.Resource{}, "", func(_ context.Context, op *operation.Operation) error {
		id = op.ID
		return refusal
	})
	if !errors.Is(err, refusal) {
		t.Errorf("Submit: %v", err)
	}
	if _, err := e.Get(t.Context(), id); !errors.Is(err, errMissing) {
		t.Errorf("Get: %v", err)
	}
}

func TestFailureAndRetryOfTheEnd(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		err := run.Step(ctx, "one", func(context.Context) error {
			return &sandbox.Error{Code: sandbox.CodePoolFull, Message: "full", Cause: "why", Err: errors.New("inner")}
		})
		r.mu.Lock()
		r.fail = 2
		r.mu.Unlock()
		return operation.Outcome{Err: err}
	}})
	if err != nil || got.State != operation.Failed || got.Error.Code != sandbox.CodePoolFull {
		t.Errorf("%+v %v", got, err)
	}
	if s := got.Steps[0]; s.State != operation.Failed || s.Error != "full (why)" {
		t.Errorf("step %+v", s)
	}
	if row := r.get(op.ID); row.State != operation.Failed {
		t.Errorf("the record after two failed writes: %s", row.State)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	if got, err := e.Wait(t.Context(), op.ID, time.Millisecond); err != nil || got.State != operation.Queued {
		t.Errorf("a wait that runs out: %s %v", got.State, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := e.Wait(gone, op.ID, time.Hour); err != nil || got.State != operation.Queued {
		t.Errorf("a caller that has gone: %s %v", got.State, err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got, err := e.Wait(t.Context(), op.ID, time.Hour); err != nil || got.State != operation.Succeeded {
				t.Errorf("%s %v", got.State, err)
			}
		})
	}
	if _, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "one", nothing)}
	}}); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestDeadlineAndInterrupt(t *testing.T) {
	t.Parallel()
	untilEnd := func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "wait", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })}
	}
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	got, err := e.Run(t.Context(), operation.Task{ID: op.ID, Deadline: time.Millisecond, Body: untilEnd})
	if err != nil || got.State != operation.Failed || got.Error.Code != sandbox.CodeDeadline {
		t.Errorf("deadline: %+v %v", got, err)
	}
	op = submit(t, e, r)
	e.Interrupt(op.ID, sandbox.Errorf(sandbox.CodeVMMFailed, "gone")) // before Run
	if got, err = e.Run(t.Context(), operation.Task{ID: op.ID, Body: untilEnd}); err != nil || got.Error.Code != sandbox.CodeVMMFailed {
		t.Errorf("interrupt before: %+v %v", got, err)
	}
	op = submit(t, e, r)
	got, err = e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		e.Interrupt(op.ID, sandbox.Errorf(sandbox.CodeCanceled, "deleted"))
		return untilEnd(ctx, run)
	}})
	if err != nil || got.State != operation.Canceled {
		t.Errorf("interrupt during: %+v %v", got, err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	op := submit(t, e, r)
	done := make(chan operation.Operation, 1)
	go func() {
		got, err := e.Cancel(t.Context(), op.ID)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	_, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		<-ctx.Done() // waits for its turn, and is canceled meanwhile
		return operation.Outcome{Err: run.Step(ctx, "never", func(context.Context) error { t.Error("it ran"); return nil })}
	}})
	if got := <-done; err != nil || got.State != operation.Canceled || len(got.Steps) != 0 {
		t.Errorf("%+v %v", got, err)
	}
	if again, err := e.Cancel(t.Context(), op.ID); err != nil || again.State != operation.Canceled {
		t.Errorf("cancel of a canceled one: %s %v", again.State, err)
	}
	op = submit(t, e, r)
	_, err = e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "one", func(context.Context) error {
			if _, err := e.Cancel(t.Context(), op.ID); sandbox.CodeOf(err) != sandbox.CodeInvalidState {
				t.Errorf("cancel of a running one: %v", err)
			}
			return nil
		})}
	}})
	if err != nil {
		t.Error(err)
	}
}

// TestRecover: an engine that stops leaves its operations to the next one, which marks what was cut off.
func TestRecover(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := newEngine(r)
	running, queued := submit(t, e, r), submit(t, e, r)
	ctx, stop := context.WithCancel(t.Context())
	_, err := e.Run(ctx, operation.Task{ID: running.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		return operation.Outcome{Err: run.Step(ctx, "one", func(ctx context.Context) error { stop(); <-ctx.Done(); return ctx.Err() })}
	}})
	if !errors.Is(err, operation.ErrStopping) {
		t.Fatalf("Run: %v", err)
	}
	next := newEngine(r)
	adopted := map[sandbox.OperationID]operation.Operation{}
	if err := next.Recover(t.Context(), func(op operation.Operation) { adopted[op.ID] = op }); err != nil {
		t.Fatal(err)
	}
	if got := adopted[running.ID]; len(adopted) != 2 || got.Attempt != 2 || got.Steps[0].State != operation.Failed {
		t.Errorf("adopted: %+v", adopted)
	}
	if got := adopted[queued.ID]; got.Attempt != 1 || got.State != operation.Queued {
		t.Errorf("queued: %+v", got)
	}
	got, err := next.Run(t.Context(), operation.Task{ID: running.ID, Body: func(context.Context, *operation.Run) operation.Outcome {
		return operation.Outcome{Err: sandbox.Errorf(sandbox.CodeInterrupted, "cut off")}
	}})
	if err != nil || got.State != operation.Failed || r.get(running.ID).State != operation.Failed {
		t.Errorf("%+v %v", got, err)
	}
}

// TestLongStepsAreRecorded: a step that lasts is in the record before it ends.
func TestLongStepsAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRecord()
	e := operation.New(operation.Config{Store: r, Now: time.Now, Logger: slog.New(slog.DiscardHandler), ProgressDelay: time.Millisecond})
	op := submit(t, e, r)
	_, err := e.Run(t.Context(), operation.Task{ID: op.ID, Body: func(ctx context.Context, run *operation.Run) operation.Outcome {
		err := run.Step(ctx, "one", nothing)
		return operation.Outcome{Err: errors.Join(err, run.Step(ctx, "two", func(context.Context) error {
			deadline := time.After(10 * time.Second)
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			for len(r.get(op.ID).Steps) < 2 {
				select {
				case <-look.C:
				case <-deadline:
					return errors.New("the second step was never recorded")
				}
			}
			return nil
		}))}
	}})
	if got := r.get(op.ID); err != nil || got.State != operation.Succeeded {
		t.Errorf("%+v %v", got, err)
	}
}
