package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/space-sandbox/space/internal/sandbox"
)

// TestTurnsModel compares random histories with what the rules say: never more at work than slots, none free while one
// waits, each owner's in order, and the owners in turn.
func TestTurnsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 4).Draw(t, "slots")
		m := &turnsModel{turns: newTurns(slots, 1000, 1000), slots: slots, owners: map[sandbox.OperationID]string{}, passed: map[string]map[string]int{}}
		t.Repeat(map[string]func(*rapid.T){
			"join":  m.join,
			"enter": m.enter,
			"leave": m.leave,
			"":      m.check,
		})
	})
}

type turnsModel struct {
	turns                   *turns
	slots, n                int
	owners                  map[sandbox.OperationID]string
	joined, waiting, atWork []sandbox.OperationID
	// passed counts, for each owner of whom one waits, the turns of others since its own last one.
	passed map[string]map[string]int
}

func (m *turnsModel) join(t *rapid.T) {
	op := sandbox.OperationID(fmt.Sprintf("op%06d", m.n))
	m.n++
	m.owners[op] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "owner")
	if err := m.turns.join(op, m.owners[op]); err != nil {
		t.Fatal(err)
	}
	m.joined = append(m.joined, op)
}

func (m *turnsModel) enter(t *rapid.T) {
	if len(m.joined) == 0 {
		t.Skip("none has joined")
	}
	op := take(t, &m.joined)
	m.waiting = append(m.waiting, op)
	slices.Sort(m.waiting)
	m.turns.enter(op)
	m.turns.enter(op) // once is enough
	m.called(t)
}

func (m *turnsModel) leave(t *rapid.T) {
	from := rapid.SampledFrom([]*[]sandbox.OperationID{&m.joined, &m.waiting, &m.atWork}).Draw(t, "from")
	if len(*from) == 0 {
		t.Skip("there is none")
	}
	op := take(t, from)
	m.turns.leave(op)
	m.turns.leave(op)
	m.called(t)
}

func take(t *rapid.T, from *[]sandbox.OperationID) sandbox.OperationID {
	i := rapid.IntRange(0, len(*from)-1).Draw(t, "which")
	op := (*from)[i]
	*from = slices.Delete(slices.Clone(*from), i, i+1)
	return op
}

// called moves those whose turn has come.
func (m *turnsModel) called(t *rapid.T) {
	first := map[string]sandbox.OperationID{} // of each owner
	for _, op := range m.waiting {
		if owner := m.owners[op]; first[owner] == "" {
			first[owner] = op
		}
	}
	var still []sandbox.OperationID
	for _, op := range m.waiting {
		if !m.turns.tickets[op].at {
			still = append(still, op)
			continue
		}
		owner := m.owners[op]
		if first[owner] != op {
			t.Fatalf("%s came before %s of the same owner", op, first[owner])
		}
		m.atWork = append(m.atWork, op)
		delete(m.passed, owner)
		for other, head := range first {
			if other == owner || m.turns.tickets[head].at {
				continue
			}
			if m.passed[other] == nil {
				m.passed[other] = map[string]int{}
			}
			if m.passed[other][owner]++; m.passed[other][owner] > 1 {
				t.Fatalf("%s had two turns while %s of %s waited", owner, head, other)
			}
		}
	}
	m.waiting = still
	for owner := range m.passed {
		if !slices.ContainsFunc(m.waiting, func(op sandbox.OperationID) bool { return m.owners[op] == owner }) {
			delete(m.passed, owner)
		}
	}
}

func (m *turnsModel) check(t *rapid.T) {
	switch {
	case len(m.atWork) > m.slots:
		t.Fatalf("%d at work with %d slots", len(m.atWork), m.slots)
	case len(m.waiting) > 0 && len(m.atWork) < m.slots:
		t.Fatalf("%d wait, %d of %d slots are taken", len(m.waiting), len(m.atWork), m.slots)
	case m.turns.queued() != len(m.joined)+len(m.waiting):
		t.Fatalf("%d queued, want %d", m.turns.queued(), len(m.joined)+len(m.waiting))
	case m.turns.free != m.slots-len(m.atWork):
		t.Fatalf("%d slots are free with %d of %d taken", m.turns.free, len(m.atWork), m.slots)
	}
}

// TestOneDoesNotStarveAnother: behind a thousand of one owner, another's one is next.
func TestOneDoesNotStarveAnother(t *testing.T) {
	t.Parallel()
	q := newTurns(1, 1000, 4000)
	id := func(i int) sandbox.OperationID { return sandbox.OperationID(fmt.Sprintf("op%d", i)) }
	for i := range 1001 { // one at work
		if err := q.join(id(i), "greedy"); err != nil {
			t.Fatal(err)
		}
		q.enter(id(i))
	}
	if err := q.join("one too many", "greedy"); sandbox.CodeOf(err) != sandbox.CodeCapacity || sandbox.AsError(err).RetryAfter == 0 {
		t.Errorf("behind a full queue: %v", err)
	}
	if err := q.join("modest", "modest"); err != nil {
		t.Fatal(err)
	}
	q.enter("modest")
	q.leave(id(0)) // greedy was first in the round
	q.leave(id(1))
	if !q.tickets["modest"].at {
		t.Fatal("the other owner's turn has not come")
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("deleted")
	cancel(cause)
	if err := q.wait(gone, id(2), "greedy"); !errors.Is(err, cause) {
		t.Errorf("a wait that was interrupted: %v", err)
	}
}

// TestTheQueueIsBounded: in all, too.
func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := newTurns(1, 2, 3)
	for i := range 4 { // the first is at work
		op := sandbox.OperationID(fmt.Sprintf("op%d", i))
		if err := q.join(op, fmt.Sprint(i/2)); err != nil {
			t.Fatal(err)
		}
		q.enter(op)
	}
	wantFull := func(owner string) {
		t.Helper()
		if err := q.join("next", owner); sandbox.CodeOf(err) != sandbox.CodeCapacity {
			t.Errorf("join of %s: %v", owner, err)
		}
	}
	wantFull("1")
	wantFull("other")
	q.admit("accepted before", "other") // by an earlier process
	q.leave("accepted before")
	q.leave("op3")
	if err := q.join("next", "other"); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
