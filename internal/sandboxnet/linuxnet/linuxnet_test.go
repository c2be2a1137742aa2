package linuxnet_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/netboxtest"
	"golang.org/x/sys/unix"
)

// installationID returns one that no other test uses.
func installationID() string { return string(sandbox.NewID()[:6]) }

func newManager(t testing.TB, installation string) *linuxnet.Manager {
	t.Helper()
	m, err := linuxnet.New(linuxnet.Config{InstallationID: installation, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("these tests need root: %v", err)
	}
	return m
}

// newBox makes a box that goes with the test.
func newBox(t testing.TB) (*linuxnet.Manager, sandbox.ID, sandboxnet.Box) {
	t.Helper()
	m, id := newManager(t, installationID()), sandbox.NewID()
	box, err := m.Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		box.Close()
		if err := m.Delete(context.WithoutCancel(t.Context()), id); err != nil {
			t.Errorf("delete the box: %v", err)
		}
	})
	return m, id, box
}

func namespacePath(installation string, id sandbox.ID) string {
	return "/run/netns/space-" + installation + "-" + string(id)
}

func TestSuite(t *testing.T) {
	t.Parallel()
	netboxtest.Run(t, func(t *testing.T) netboxtest.Driver {
		here, other := installationID(), installationID()
		return netboxtest.Driver{
			New:      func(t *testing.T) sandboxnet.Manager { return newManager(t, here) },
			NewOther: func(t *testing.T) sandboxnet.Manager { return newManager(t, other) },
		}
	})
}

func TestNewRefusesBadInstallation(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "../x", "a/b", "ABC", "abcdefghijklm"} {
		if _, err := linuxnet.New(linuxnet.Config{InstallationID: id, Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("New(%q) succeeded", id)
		}
	}
}

// TestHalfMadeBox plays a crash between making the name and mounting the namespace.
func TestHalfMadeBox(t *testing.T) {
	t.Parallel()
	installation, id := installationID(), sandbox.NewID()
	m := newManager(t, installation)
	path := namespacePath(installation, id)
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
	if ids, err := m.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("List = %v, %v; want the half-made box", ids, err)
	}
	if _, err := m.Open(t.Context(), id); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("Open of a half-made box: %v", err)
	}
	box, err := m.Create(t.Context(), id)
	if err != nil {
		t.Fatalf("Create over a half-made box: %v", err)
	}
	box.Close()
	if err := m.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", path, err)
	}
}

// TestDeleteUnderARunningVMM deletes a box whose tap is still held: the link goes at once.
func TestDeleteUnderARunningVMM(t *testing.T) {
	t.Parallel()
	installation, id := installationID(), sandbox.NewID()
	m := newManager(t, installation)
	box, err := m.Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	tap, err := box.Tap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	if second, err := box.Tap(t.Context()); err == nil {
		second.Close()
		t.Error("a second descriptor of the same tap was handed out")
	}
	if err := m.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := tap.Write(make([]byte, 64)); !errors.Is(err, unix.EBADFD) {
		t.Errorf("write to the tap of a deleted box: %v, want EBADFD", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), namespacePath(installation, id)) {
		t.Error("the namespace is still mounted")
	}
}

// awaitCounter reads the packet counters until the one of that name is at least want.
func awaitCounter(t *testing.T, m *linuxnet.Manager, id sandbox.ID, name string, want uint64) map[string]uint64 {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		counts, err := m.Counters(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if counts[name] >= want {
			return counts
		}
		if time.Now().After(deadline) {
			t.Fatalf("rule %s has counted %d packets, want %d; all: %v", name, counts[name], want, counts)
		}
		runtime.Gosched()
	}
}
