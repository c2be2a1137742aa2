package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/space-sandbox/space/internal/failpoint"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// phase is how far a machine's parts have come.
type phase string

const (
	phaseMaking   phase = "making"   // parts may exist; after a crash they are removed, but for a disk of Previous
	phaseRunning  phase = "running"  // the VMM was started and is to be adopted
	phaseExited   phase = "exited"   // the VMM is gone, the disk is kept
	phaseDeleting phase = "deleting" // after a crash the removal goes on
)

// record is the state file of one machine.
type record struct {
	ID             sandbox.ID `json:"id"`
	Generation     int64      `json:"generation"`
	Phase          phase      `json:"phase"`
	Driver         string     `json:"driver"`
	Isolation      string     `json:"isolation,omitempty"`
	UID            uint32     `json:"uid"`
	VCPUs          int        `json:"vcpus"`
	MemoryMiB      int        `json:"memory_mib"`
	DiskMiB        int        `json:"disk_mib"`
	TemplateDigest string     `json:"template_digest"`
	BootID         string     `json:"boot_id"`
	MadeAt         time.Time  `json:"made_at"`
	Machine        *vmm.State `json:"machine,omitempty"`
	// Paused: the machine is to stand still because somebody asked for it. Written before the act.
	Paused bool `json:"paused,omitempty"`
	// Held is why node keeps the machine from running, though it is wanted to: sandbox.ReasonPoolFull, or "". At most one
	// of Paused and Held is set.
	Held string `json:"held,omitempty"`
	// Previous is the machine whose disk is kept, while another is being made on it. When that fails, it is the record
	// again.
	Previous *record `json:"previous,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Detail   string  `json:"detail,omitempty"`
}

// still reports whether the machine is to stand still.
func (r *record) still() bool { return r.Paused || r.Held != "" }

const maxRecordBytes = 64 << 10

// recordStore keeps records in one directory, one file each, replaced atomically.
type recordStore struct{ root *os.Root }

func openRecords(dir string) (*recordStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("machine records: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("machine records: %w", err)
	}
	return &recordStore{root: root}, nil
}

func (s *recordStore) close() error { return s.root.Close() }

func recordName(id sandbox.ID) string { return string(id) + ".json" }

// save replaces the record of r.ID durably: temporary file, fsync, rename, fsync of the directory.
func (s *recordStore) save(r *record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	tmp := recordName(r.ID) + ".tmp"
	f, err := s.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	_, werr := f.Write(append(data, '\n'))
	if err := errors.Join(werr, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write record: %w", err), s.root.Remove(tmp))
	}
	failpoint.Hit(failpoint.RecordStaged)
	if err := s.root.Rename(tmp, recordName(r.ID)); err != nil {
		return fmt.Errorf("replace record: %w", err)
	}
	return s.syncDir()
}

// remove deletes the record of id; one that does not exist is fine.
func (s *recordStore) remove(id sandbox.ID) error {
	if err := s.root.Remove(recordName(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return s.syncDir()
}

func (s *recordStore) syncDir() error {
	d, err := s.root.Open(".")
	if err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	return nil
}

// load reads all records. Temporary files of a crash are removed; a damaged record is an error, since what it names
// could not be cleaned up otherwise.
func (s *recordStore) load() ([]*record, error) {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	var all []*record
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".tmp") {
			if err := s.root.Remove(name); err != nil {
				return nil, fmt.Errorf("remove unfinished record: %w", err)
			}
			continue
		}
		r, err := s.read(name)
		if err != nil {
			return nil, fmt.Errorf("record %s: %w", name, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *recordStore) read(name string) (*record, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r record
	if err := json.NewDecoder(io.LimitReader(f, maxRecordBytes)).Decode(&r); err != nil {
		return nil, err
	}
	if _, err := sandbox.ParseID(string(r.ID)); err != nil {
		return nil, err
	}
	if name != recordName(r.ID) {
		return nil, fmt.Errorf("names sandbox %s", r.ID)
	}
	return &r, nil
}
