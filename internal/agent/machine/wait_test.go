package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWaitForFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vda")
	done := make(chan error, 1)
	go func() { done <- waitForFile(t.Context(), path) }()
	if err := os.WriteFile(path+".other", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".other", path); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := waitForFile(t.Context(), path); err != nil {
		t.Errorf("for a file that is there: %v", err)
	}
}

func TestWaitForFileEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := waitForFile(ctx, filepath.Join(t.TempDir(), "vda"))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want that the deadline passed", err)
	}
}
