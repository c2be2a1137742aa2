package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func open(t *testing.T, dir string, limits Limits) *Store {
	t.Helper()
	s, err := Open(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func writer(t *testing.T, s *Store, id sandbox.CommandID) *Writer {
	t.Helper()
	w, err := s.Writer(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func add(t *testing.T, w *Writer, stream string, data []byte) {
	t.Helper()
	if err := w.Add(apiv1.TranscriptEntry{Type: apiv1.TranscriptOutput, Stream: stream, Offset: w.Next(stream), Data: data}); err != nil {
		t.Fatal(err)
	}
}

// entries reads a whole transcript.
func entries(t *testing.T, s *Store, id sandbox.CommandID) (all []apiv1.TranscriptEntry) {
	t.Helper()
	r, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dec := json.NewDecoder(r)
	for {
		var e apiv1.TranscriptEntry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

// TestGoesOn: a second writer continues behind what a first, that was killed in the middle of a line, has left.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	dir, id := t.TempDir(), sandbox.NewCommandID()
	s := open(t, dir, Limits{})
	w := writer(t, s, id)
	add(t, w, "stdout", []byte("one\x00\xff"))
	if err := w.Add(apiv1.TranscriptEntry{Type: apiv1.TranscriptGap, Stream: "stderr", Offset: 0, To: 7}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, string(id)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"type":"output","stream":"stdout","off`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w = writer(t, open(t, dir, Limits{}), id)
	if w.Next("stdout") != 5 || w.Next("stderr") != 7 || w.Next("pty") != 0 {
		t.Errorf("goes on at %d, %d, %d", w.Next("stdout"), w.Next("stderr"), w.Next("pty"))
	}
	add(t, w, "stdout", []byte("two"))
	if s.Ended(id) {
		t.Error("ended too early")
	}
	if err := w.End(apiv1.TranscriptEntry{Type: apiv1.TranscriptResult, State: "exited"}); err != nil {
		t.Fatal(err)
	}
	all := entries(t, s, id)
	if len(all) != 4 || string(all[0].Data)+string(all[2].Data) != "one\x00\xfftwo" || all[3].State != "exited" || !s.Ended(id) {
		t.Errorf("%+v", all)
	}
	if _, err := s.Read(sandbox.NewCommandID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a transcript that is not there: %v", err)
	}
}

// TestRotation: of a session that says too much the newest stays, whole and in order.
func TestRotation(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	dir, id := t.TempDir(), sandbox.NewCommandID()
	s := open(t, dir, Limits{Session: limit})
	w := writer(t, s, id)
	var want bytes.Buffer
	for n := range 1000 {
		piece := bytes.Repeat([]byte{byte(n)}, 500)
		want.Write(piece)
		add(t, w, "pty", piece)
	}
	var got bytes.Buffer
	all := entries(t, s, id)
	first := all[0].Offset
	for _, e := range all {
		if e.Offset != first+uint64(got.Len()) {
			t.Fatalf("entry at %d, want %d", e.Offset, first+uint64(got.Len()))
		}
		got.Write(e.Data)
	}
	if first == 0 || !bytes.Equal(got.Bytes(), want.Bytes()[first:]) {
		t.Errorf("%d bytes from %d", got.Len(), first)
	}
	if size := used(t, dir); size > limit || size < limit/4 {
		t.Errorf("%d bytes on disk, bound %d", size, limit)
	}
}

func used(t *testing.T, dir string) (size int64) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// TestTrim: the oldest sessions that have ended give way, those that go on stay.
func TestTrim(t *testing.T) {
	t.Parallel()
	const bound = 100 << 10
	dir := t.TempDir()
	s := open(t, dir, Limits{Total: bound})
	running := sandbox.NewCommandID()
	add(t, writer(t, s, running), "stdout", make([]byte, 10<<10))
	var last sandbox.CommandID
	for range 20 {
		last = sandbox.NewCommandID()
		w := writer(t, s, last)
		add(t, w, "stdout", make([]byte, 10<<10))
		if err := w.End(apiv1.TranscriptEntry{Type: apiv1.TranscriptResult}); err != nil {
			t.Fatal(err)
		}
	}
	writer(t, s, sandbox.NewCommandID())
	if size := used(t, dir); size > bound || size < bound/2 {
		t.Errorf("%d bytes on disk, bound %d", size, bound)
	}
	for _, id := range []sandbox.CommandID{running, last} {
		if len(entries(t, s, id)) == 0 {
			t.Errorf("%s is gone", id)
		}
	}
}
