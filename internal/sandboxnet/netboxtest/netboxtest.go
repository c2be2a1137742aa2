// Package netboxtest is the suite that every driver of package sandboxnet passes.
package netboxtest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// Driver makes managers for the suite.
type Driver struct {
	// New returns a manager of the installation of this test; called again, it stands for a later process.
	New func(t *testing.T) sandboxnet.Manager
	// NewOther returns a manager of another installation on the same host.
	NewOther func(t *testing.T) sandboxnet.Manager
}

// Run runs the suite. make is called once for each test in it and gives each an installation of its own.
func Run(t *testing.T, make func(t *testing.T) Driver) {
	for name, test := range map[string]func(*testing.T, Driver){
		"CreateOpenDelete":      testCreateOpenDelete,
		"CreateReplaces":        testCreateReplaces,
		"DeleteIsIdempotent":    testDeleteIsIdempotent,
		"OutlivesItsMaker":      testOutlivesItsMaker,
		"OtherInstallation":     testOtherInstallation,
		"RefusesWhatIsNoID":     testRefusesWhatIsNoID,
		"CanceledLeavesNothing": testCanceledLeavesNothing,
		"Concurrent":            testConcurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

func testCreateOpenDelete(t *testing.T, d Driver) {
	m, id := d.New(t), sandbox.NewID()
	create(t, m, id)
	wantList(t, m, id)
	b, err := m.Open(t.Context(), id)
	if err != nil {
		t.Fatalf("Open after Create: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wantList(t, m, id) // Close keeps the box
	remove(t, m, id)
	wantList(t, m)
	wantNoBox(t, m, id)
}

func testCreateReplaces(t *testing.T, d Driver) {
	m, id := d.New(t), sandbox.NewID()
	create(t, m, id)
	create(t, m, id)
	wantList(t, m, id)
	remove(t, m, id)
	wantList(t, m)
}

func testDeleteIsIdempotent(t *testing.T, d Driver) {
	m, id := d.New(t), sandbox.NewID()
	remove(t, m, id) // never existed
	create(t, m, id)
	remove(t, m, id)
	remove(t, m, id)
}

func testOutlivesItsMaker(t *testing.T, d Driver) {
	first, id := d.New(t), sandbox.NewID()
	create(t, first, id)
	second := d.New(t)
	wantList(t, second, id)
	b, err := second.Open(t.Context(), id)
	if err != nil {
		t.Fatalf("Open in a later process: %v", err)
	}
	defer b.Close()
	remove(t, second, id)
	wantList(t, first)
}

func testOtherInstallation(t *testing.T, d Driver) {
	m, other, id := d.New(t), d.NewOther(t), sandbox.NewID()
	create(t, m, id)
	wantList(t, other)
	wantNoBox(t, other, id)
	remove(t, other, id)
	wantList(t, m, id)
}

func testRefusesWhatIsNoID(t *testing.T, d Driver) {
	m := d.New(t)
	for _, id := range []sandbox.ID{"", ".", "..", "../../etc/passwd", "aaaaaaaaaaaaaaaaaaa/", "AAAAAAAAAAAAAAAAAAAA",
		"aaaaaaaaaaaaaaaaaaa\x00", "aaaaaaaaaaaaaaaaaaaaa"} {
		if b, err := m.Create(t.Context(), id); err == nil {
			b.Close()
			t.Errorf("Create(%q) succeeded", id)
		}
		if b, err := m.Open(t.Context(), id); err == nil {
			b.Close()
			t.Errorf("Open(%q) succeeded", id)
		}
		if err := m.Delete(t.Context(), id); err == nil {
			t.Errorf("Delete(%q) succeeded", id)
		}
	}
	wantList(t, m)
}

func testCanceledLeavesNothing(t *testing.T, d Driver) {
	m, id := d.New(t), sandbox.NewID()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := m.Create(ctx, id); err == nil {
		b.Close()
		t.Error("Create with a canceled context succeeded")
	}
	wantList(t, m)
	wantNoBox(t, m, id)
}

func testConcurrent(t *testing.T, d Driver) {
	m := d.New(t)
	ids := []sandbox.ID{sandbox.NewID(), sandbox.NewID(), sandbox.NewID()}
	var wg sync.WaitGroup
	for n := range 9 {
		wg.Go(func() {
			id := ids[n%len(ids)]
			for range 3 {
				b, err := m.Create(t.Context(), id)
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				b.Close()
				if err := m.Delete(t.Context(), id); err != nil {
					t.Errorf("Delete: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantList(t, m)
}

func create(t *testing.T, m sandboxnet.Manager, id sandbox.ID) {
	t.Helper()
	b, err := m.Create(t.Context(), id)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		b.Close()
		if err := m.Delete(context.WithoutCancel(t.Context()), id); err != nil {
			t.Errorf("Delete at the end: %v", err)
		}
	})
}

func remove(t *testing.T, m sandboxnet.Manager, id sandbox.ID) {
	t.Helper()
	if err := m.Delete(t.Context(), id); err != nil {
		t.Fatalf("Delete: %v", err)
	}
}

func wantList(t *testing.T, m sandboxnet.Manager, want ...sandbox.ID) {
	t.Helper()
	got, err := m.List(t.Context())
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("List = %v, want %v", got, want)
	}
}

func wantNoBox(t *testing.T, m sandboxnet.Manager, id sandbox.ID) {
	t.Helper()
	b, err := m.Open(t.Context(), id)
	if err == nil {
		b.Close()
		t.Fatalf("Open(%s) succeeded without a box", id)
	}
	if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound {
		t.Errorf("Open without a box: code %s, want %s (%v)", code, sandbox.CodeNotFound, err)
	}
}
