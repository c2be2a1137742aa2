package newc_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/guestos/newc"
)

type item struct {
	Name string
	Mode cpio.FileMode
	Data string
}

// readAll reads one archive with another implementation of the format.
func readAll(t *testing.T, r io.Reader) []item {
	t.Helper()
	var items []item
	archive := cpio.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return items
		}
		if err != nil {
			t.Fatalf("read archive: %v", err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatalf("read %s: %v", h.Name, err)
		}
		items = append(items, item{h.Name, h.Mode, string(data)})
	}
}

func TestArchiveIsReadByAnotherReader(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	w := newc.NewWriter(&buf)
	for _, err := range []error{
		w.Dir("dev", 0o755),
		w.CharDevice("dev/console", 0o600, 5, 1),
		w.File("init", 0o755, []byte("odd")),
		w.File("empty", 0o400, nil),
		w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if buf.Len()%newc.Block != 0 {
		t.Errorf("length %d is no multiple of %d", buf.Len(), newc.Block)
	}
	want := []item{
		{"dev", cpio.TypeDir | 0o755, ""},
		{"dev/console", cpio.TypeChar | 0o600, ""},
		{"init", cpio.TypeReg | 0o755, "odd"},
		{"empty", cpio.TypeReg | 0o400, ""},
	}
	if diff := cmp.Diff(want, readAll(t, &buf)); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "/abs", "a/../b", "a//b", "TRAILER!!!", strings.Repeat("x", 5000)} {
		if err := newc.NewWriter(io.Discard).File(name, 0o644, nil); err == nil {
			t.Errorf("name %.20q was accepted", name)
		}
	}
}

type failing struct{ after int }

var errFull = errors.New("full")

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestErrorsOfTheWriterBelowStay(t *testing.T) {
	t.Parallel()
	w := newc.NewWriter(&failing{after: 150})
	if err := w.File("a", 0o644, make([]byte, 4096)); !errors.Is(err, errFull) {
		t.Errorf("File: %v, want %v", err, errFull)
	}
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close: %v, want %v", err, errFull)
	}
}
