package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/store/sqlite"
	"github.com/space-sandbox/space/internal/store/storetest"
)

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "space.db")) })
}

// TestReopen: what was committed is there after a restart, in a file that only its owner can read, also with
// characters in the path that mean something in a URI.
func TestReopen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a b?c#d%41")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "space.db")
	s := open(t, path)
	if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.SetMeta("x", "kept") }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, path).Meta(t.Context(), "x"); got != "kept" || err != nil {
		t.Errorf("after reopening: %q, %v", got, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
}

// TestEventNumbersOutliveRestarts: numbers go on where they were, also when all events have been purged before.
func TestEventNumbersOutliveRestarts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "space.db")
	for want := int64(1); want <= 4; want += 2 {
		s := open(t, path)
		err := s.Update(t.Context(), func(tx store.Tx) error {
			e := store.Event{Time: time.Unix(1, 0), Type: store.EventCommand, Object: []byte("{}")}
			return errors.Join(tx.AppendEvent(e), tx.AppendEvent(e))
		})
		if err != nil {
			t.Fatal(err)
		}
		page, err := s.Events(t.Context(), 0, store.EventFilter{}, 10)
		if err != nil || len(page.Events) != 2 || page.Events[0].Seq != want || page.Newest != want+1 {
			t.Errorf("got %+v, %v, want 2 events from %d on", page, err, want)
		}
		err = s.Update(t.Context(), func(tx store.Tx) error { _, err := tx.PurgeEvents(time.Unix(2, 0), 10, 10); return err })
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrash copies the files of a store in use, as a power cut would leave them, and opens the copy.
func TestCrash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "space.db")
	s := open(t, path)
	if err := s.Update(t.Context(), func(tx store.Tx) error { return tx.SetMeta("x", "committed") }); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			err := tx.SetMeta("x", "not committed")
			close(entered)
			<-leave
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-entered
	copied := filepath.Join(t.TempDir(), "space.db")
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	close(leave)
	wg.Wait()
	if got, err := open(t, copied).Meta(t.Context(), "x"); got != "committed" || err != nil {
		t.Errorf("after the crash: %q, %v", got, err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "space.db")
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)")
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = sqlite.Open(t.Context(), path)
	if sandbox.CodeOf(err) != sandbox.CodeHostSetup || !strings.Contains(err.Error(), "9999") {
		t.Errorf("got %v, want a host_setup error that names the schema", err)
	}
}

// TestUsageOfAnOlderSchema: sandboxes that were there before the sums are counted.
func TestUsageOfAnOlderSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "space.db")
	s := open(t, path)
	b := sandbox.Sandbox{ID: sandbox.NewID(), State: sandbox.StateRunning, Driver: "qemu", MemoryMiB: 512, VCPUs: 2, CreatedAt: time.Now()}
	if err := errors.Join(s.Update(t.Context(), func(tx store.Tx) error { return tx.InsertSandbox(b) }), s.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"DROP TRIGGER sandboxes_usage_insert", "DROP TRIGGER sandboxes_usage_update",
		"DROP TRIGGER sandboxes_usage_delete", "DROP TABLE usage", "DELETE FROM goose_db_version WHERE version_id >= 6"} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, path).Usage(t.Context(), "")
	if want := (store.Usage{Sandboxes: 1, MemoryMiB: 512, VCPUs: 2}); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestDamagedFileIsRefused(t *testing.T) {
	t.Parallel()
	whole := filepath.Join(t.TempDir(), "space.db")
	s := open(t, whole)
	for range 200 {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			return tx.SetMeta(string(sandbox.NewID()), strings.Repeat("x", 400))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	holed := append([]byte(nil), data...)
	for i := len(holed) - 3*4096; i < len(holed); i++ {
		holed[i] = 0xa5
	}
	for name, content := range map[string][]byte{
		"not a database": []byte(strings.Repeat("hello ", 1000)),
		"cut off":        data[:len(data)/2],
		"overwritten":    holed,
	} {
		path := filepath.Join(t.TempDir(), "space.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := sqlite.Open(t.Context(), path)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if sandbox.CodeOf(err) != sandbox.CodeHostSetup || sandbox.AsError(err).Remedy == "" {
			t.Errorf("%s: %v, want a host_setup error with a remedy", name, err)
		}
		if left, err := os.ReadFile(path); err != nil || len(left) != len(content) {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

// TestUpdatesShareCommits: updates that wait while another one is under way become durable together.
func TestUpdatesShareCommits(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "space.db"))
	entered, leave := make(chan struct{}), make(chan struct{})
	put := func(fn func(store.Tx) error) func() error {
		wait, err := s.Enqueue(t.Context(), fn)
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	waits := []func() error{put(func(store.Tx) error { close(entered); <-leave; return nil })}
	<-entered
	const n = 32
	for range n {
		waits = append(waits, put(func(tx store.Tx) error { return tx.SetMeta(string(sandbox.NewID()), "v") }))
	}
	close(leave)
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	if c := s.Commits(); c != 1 {
		t.Errorf("%d commits for %d updates that waited together, want 1", c, n)
	}
}

// TestWaitForOtherWriter: a lock of a backup or shell on the file is waited for, not reported.
func TestWaitForOtherWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "space.db")
	s := open(t, path)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- s.Update(context.Background(), func(tx store.Tx) error { return tx.SetMeta("x", "v") })
	}()
	select {
	case err := <-done:
		t.Fatalf("the update ended while another writer held the lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := conn.ExecContext(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the lock was released: %v", err)
	}
}

// BenchmarkUpdate measures durable updates alone and 50 at once.
func BenchmarkUpdate(b *testing.B) {
	for name, parallel := range map[string]int{"1": 1, "50": 25} {
		b.Run(name, func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "space.db"))
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			b.SetParallelism(parallel)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					err := s.Update(b.Context(), func(tx store.Tx) error {
						return tx.InsertSandbox(sandbox.Sandbox{ID: sandbox.NewID(), CreatedAt: time.Now()})
					})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(s.Commits())/float64(b.N), "commits/op")
		})
	}
}
