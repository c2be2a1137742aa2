package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// pool is what a node says.
func poolOf(free, reserve uint64) *nodev1.GetNodeResponse {
	return &nodev1.GetNodeResponse{MaxMachines: 100, Pool: &nodev1.Pool{TotalBytes: 1 << 40, FreeBytes: free, ReserveBytes: reserve}}
}

// TestBudgetModel: whatever comes and goes, and however late the looks at the pool are, nothing is accepted for which
// the pool, as it really is, has no room above its reserve.
func TestBudgetModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const reserve = 1000
		b := newBudget(nil)
		really := rapid.Int64Range(1000, 3000).Draw(t, "free") // of the pool
		seen, answer := b.written(), really
		b.learn(poolOf(uint64(answer), reserve), nil, seen)
		held := map[sandbox.OperationID]int64{}
		n := 0
		one := func(t *rapid.T) (sandbox.OperationID, int64) {
			if len(held) == 0 {
				t.Skip("none is under way")
			}
			var ids []sandbox.OperationID
			for i := range n {
				if id := sandbox.OperationID(fmt.Sprint(i)); held[id] > 0 {
					ids = append(ids, id)
				}
			}
			id := rapid.SampledFrom(ids).Draw(t, "operation")
			return id, held[id]
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				id, bytes := sandbox.OperationID(fmt.Sprint(n)), rapid.Int64Range(1, 400).Draw(t, "bytes")
				n++
				if b.take(id, reservation{bytes: bytes, place: sandbox.ID(id)}, 0) == nil {
					held[id] = bytes
				}
			},
			"refuse": func(t *rapid.T) {
				id, _ := one(t)
				b.refuse(id)
				delete(held, id)
			},
			"end": func(t *rapid.T) {
				id, bytes := one(t)
				really -= rapid.Int64Range(0, bytes).Draw(t, "written")
				b.end(id)
				delete(held, id)
			},
			"ask":   func(*rapid.T) { seen, answer = b.written(), really },
			"learn": func(*rapid.T) { b.learn(poolOf(uint64(answer), reserve), nil, seen) },
			"": func(t *rapid.T) {
				sum := int64(0)
				for _, bytes := range held {
					sum += bytes
				}
				if sum > 0 && really-sum < reserve {
					t.Fatalf("%d bytes are free and %d promised, with a reserve of %d", really, sum, reserve)
				}
				if b.bytes != sum {
					t.Fatalf("%d held, want %d", b.bytes, sum)
				}
			},
		})
	})
}

// TestBudgetUnderConcurrency: what is there is given out once.
func TestBudgetUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := newBudget([]sandbox.Sandbox{{ID: "old"}})
	b.learn(poolOf(1000+7*10+9, 1000), nil, 0)
	var mu sync.Mutex
	var work sync.WaitGroup
	ok := 0
	for i := range 50 {
		work.Go(func() {
			id := fmt.Sprint(i)
			if err := b.take(sandbox.OperationID(id), reservation{bytes: 10, place: sandbox.ID(id)}, 0); err == nil {
				mu.Lock()
				ok++
				mu.Unlock()
			} else if e := sandbox.AsError(err); e.Code != sandbox.CodeCapacity || e.RetryAfter == 0 || e.Cause == "" {
				t.Errorf("%+v", e)
			}
		})
	}
	work.Wait()
	if ok != 7 || len(b.places) != 8 {
		t.Errorf("%d accepted, want 7; %d places, want 8", ok, len(b.places))
	}
}

// TestBudgetAsksWhenItMatters: node is asked when what is known is old or too little, once for many, and an answer that
// comes late does not replace a later one.
func TestBudgetAsksWhenItMatters(t *testing.T) {
	t.Parallel()
	b := newBudget(nil)
	asked := 0
	ask := func(context.Context) error {
		asked++
		b.learn(poolOf(1<<35, 1<<30), nil, b.written())
		return nil
	}
	for range 2 {
		if err := b.look(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
	}
	b.doubt()
	if err := b.look(t.Context(), ask); err != nil || asked < 2 {
		t.Errorf("asked %d times (%v)", asked, err)
	}
	b.adopt("op", reservation{bytes: 1 << 35})
	b.end("op")
	b.learn(poolOf(1<<34, 1<<30), nil, b.written())
	b.learn(poolOf(1<<35, 1<<30), nil, 0)
	if b.free != 1<<34 {
		t.Error("an old answer counts")
	}
	broken := errors.New("node is gone")
	b.learn(nil, broken, b.written())
	if err := b.take("next", reservation{bytes: 1}, 0); !errors.Is(err, broken) {
		t.Errorf("with a pool that is not known: %v", err)
	}
}
