// Package transcript keeps on the host what recorded command sessions have said, so that it can be read after their
// sandbox is gone. What it stores comes from guests: it is opaque, and bounded per session and in all.
//
// A session has up to three files: its entries (id), the entries before the last rotation (id.old), and, once it has
// ended, its result (id.end). All are lines of JSON.
package transcript

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Limits bounds what is kept. The zero value of a field means its default.
type Limits struct {
	Session int64 // bytes on disk of one session, of which the newest stay; 32 MiB
	Total   int64 // bytes on disk of all sessions, of which the latest that have ended stay; 1 GiB
}

const (
	oldSuffix = ".old"
	endSuffix = ".end"
	// maxLine bounds an entry: 32 KiB of output in base64 with its names.
	maxLine = 64 << 10
	// MaxData bounds the output of one entry.
	MaxData = 32 << 10
)

// Store is a directory of transcripts. Safe for concurrent use; one process opens it.
type Store struct {
	root   *os.Root
	limits Limits
	trimMu sync.Mutex
}

// Open opens a directory, making it (0700) when it is missing. End it with Close.
func Open(dir string, limits Limits) (*Store, error) {
	if limits.Session <= 0 {
		limits.Session = 32 << 20
	}
	if limits.Total <= 0 {
		limits.Total = 1 << 30
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("open the transcripts: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the transcripts: %w", err)
	}
	return &Store{root: root, limits: limits}, nil
}

// Close ends the store; writers that are open stay valid.
func (s *Store) Close() error { return s.root.Close() }

// Ended reports whether the session's result is kept, which is the last that is.
func (s *Store) Ended(id sandbox.CommandID) bool {
	_, err := s.root.Stat(string(id) + endSuffix)
	return err == nil
}

// Read returns all entries of a session, the result last if it has ended. fs.ErrNotExist: none is kept.
func (s *Store) Read(id sandbox.CommandID) (io.ReadCloser, error) {
	all := &files{}
	// In this order a rotation in between loses nothing: at worst the two are the same file.
	for _, suffix := range []string{"", oldSuffix, endSuffix} {
		f, err := s.root.Open(string(id) + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read a transcript: %w", err), all.Close())
		}
		all.open = append(all.open, f)
		switch {
		case suffix == endSuffix:
			all.parts = append(all.parts, bufio.NewReaderSize(f, maxLine))
		case !all.has(f):
			all.parts = append([]*bufio.Reader{bufio.NewReaderSize(f, maxLine)}, all.parts...)
		}
	}
	if len(all.open) == 0 {
		return nil, fmt.Errorf("transcript of %s: %w", id, fs.ErrNotExist)
	}
	return all, nil
}

// files is several files read as one, by whole lines: the last may be only half written yet.
type files struct {
	open  []*os.File
	parts []*bufio.Reader
	line  []byte
}

// has reports whether f, the last that was opened, had been opened before.
func (f *files) has(last *os.File) bool {
	mine, err := last.Stat()
	if err != nil {
		return false
	}
	for _, other := range f.open[:len(f.open)-1] {
		if st, err := other.Stat(); err == nil && os.SameFile(st, mine) {
			return true
		}
	}
	return false
}

// Read implements io.Reader.
func (f *files) Read(p []byte) (int, error) {
	for len(f.line) == 0 {
		if len(f.parts) == 0 {
			return 0, io.EOF
		}
		line, err := f.parts[0].ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			f.parts = f.parts[1:]
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read a transcript: %w", err)
		}
		f.line = line
	}
	n := copy(p, f.line)
	f.line = f.line[n:]
	return n, nil
}

func (f *files) Close() (err error) {
	for _, file := range f.open {
		err = errors.Join(err, file.Close())
	}
	return err
}

// trim removes the oldest transcripts of ended sessions until all together are within their bound.
func (s *Store) trim() error {
	s.trimMu.Lock()
	defer s.trimMu.Unlock()
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("look at the transcripts: %w", err)
	}
	type kept struct {
		id    string
		bytes int64
		ended time.Time // zero: not yet
	}
	byID := map[string]*kept{}
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // just removed
		}
		id, _, _ := strings.Cut(e.Name(), ".")
		if byID[id] == nil {
			byID[id] = &kept{id: id}
		}
		byID[id].bytes += info.Size()
		total += info.Size()
		if strings.HasSuffix(e.Name(), endSuffix) {
			byID[id].ended = info.ModTime()
		}
	}
	var ended []*kept
	for _, k := range byID {
		if !k.ended.IsZero() {
			ended = append(ended, k)
		}
	}
	slices.SortFunc(ended, func(a, b *kept) int { return a.ended.Compare(b.ended) })
	for _, k := range ended {
		if total <= s.limits.Total {
			break
		}
		for _, suffix := range []string{oldSuffix, "", endSuffix} {
			if err := s.root.Remove(k.id + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove an old transcript: %w", err)
			}
		}
		total -= k.bytes
	}
	return nil
}

// Writer appends to the transcript of one session. One goroutine uses it. Close it.
type Writer struct {
	store *Store
	id    sandbox.CommandID
	file  *os.File
	size  int64
	next  map[string]uint64
}

// Writer opens a session's transcript for more, after what an earlier writer has left.
func (s *Store) Writer(id sandbox.CommandID) (*Writer, error) {
	if err := s.trim(); err != nil {
		return nil, err
	}
	w := &Writer{store: s, id: id, next: map[string]uint64{}}
	for _, suffix := range []string{oldSuffix, ""} {
		if err := w.recall(string(id) + suffix); err != nil {
			return nil, err
		}
	}
	f, err := s.root.OpenFile(string(id), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a transcript: %w", err)
	}
	w.file = f
	return w, nil
}

// recall finds out how far a file goes, and cuts off a last line that was not finished.
func (w *Writer) recall(name string) error {
	f, err := w.store.root.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open a transcript: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, maxLine)
	w.size = 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			break
		}
		var e apiv1.TranscriptEntry
		if json.Unmarshal(line, &e) != nil {
			break
		}
		w.size += int64(len(line))
		w.passed(e)
	}
	if err := f.Truncate(w.size); err != nil {
		return fmt.Errorf("mend a transcript: %w", err)
	}
	return nil
}

func (w *Writer) passed(e apiv1.TranscriptEntry) {
	switch e.Type {
	case apiv1.TranscriptOutput:
		w.next[e.Stream] = e.Offset + uint64(len(e.Data))
	case apiv1.TranscriptGap:
		w.next[e.Stream] = e.To
	}
}

// Next is the offset up to which a stream is kept.
func (w *Writer) Next(stream string) uint64 { return w.next[stream] }

// Add appends an entry. At the bound of a session, its oldest entries go.
func (w *Writer) Add(e apiv1.TranscriptEntry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	line = append(line, '\n')
	if w.size+int64(len(line)) > w.store.limits.Session/2 && w.size > 0 {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	n, err := w.file.Write(line)
	w.size += int64(n)
	if err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	w.passed(e)
	return nil
}

func (w *Writer) rotate() error {
	if err := w.store.root.Rename(string(w.id), string(w.id)+oldSuffix); err != nil {
		return fmt.Errorf("rotate a transcript: %w", err)
	}
	f, err := w.store.root.OpenFile(string(w.id), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("rotate a transcript: %w", err)
	}
	err = w.file.Close()
	w.file, w.size = f, 0
	return err
}

// End keeps the result, durably; nothing comes after it.
func (w *Writer) End(result apiv1.TranscriptEntry) error {
	line, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	const unfinished = ".new"
	f, err := w.store.root.OpenFile(string(w.id)+unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	_, err = f.Write(append(line, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	if err := w.store.root.Rename(string(w.id)+unfinished, string(w.id)+endSuffix); err != nil {
		return fmt.Errorf("write a transcript: %w", err)
	}
	return nil
}

// Close ends the writer.
func (w *Writer) Close() error { return w.file.Close() }
