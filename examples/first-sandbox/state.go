package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// state is what a run remembers. It is written before what it announces is asked for, so that a run that ends at any
// point finds everything again.
type state struct {
	// Run names this run. The idempotency keys are made of it: a request that is sent again, because its answer was
	// lost, gets the answer of the first one.
	Run  string   `json:"run"`
	Argv []string `json:"argv"`

	SandboxID   string `json:"sandbox_id,omitempty"`
	OperationID string `json:"operation_id,omitempty"` // the create
	Ready       bool   `json:"ready,omitempty"`
	CommandID   string `json:"command_id,omitempty"`

	// Bytes that the command wrote faster than anybody read: they are missing in the files. How far the output was
	// read is the size of the file and this.
	StdoutMissing uint64 `json:"stdout_missing,omitempty"`
	StderrMissing uint64 `json:"stderr_missing,omitempty"`

	Result  *result `json:"result,omitempty"`
	Cleanup string  `json:"cleanup,omitempty"` // keep, pause or delete, when it has been done
}

// result is how the command ended.
type result struct {
	State    string `json:"state"` // exited; or failed, expired, lost
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"`
	Error    string `json:"error,omitempty"`
}

func stateFile(dir string) string { return filepath.Join(dir, "run.json") }

// loadState reads the state of an earlier run; found is false for a new one.
func loadState(dir string) (s state, found bool, err error) {
	data, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		var id [8]byte
		rand.Read(id[:]) // never fails (crypto/rand)
		return state{Run: hex.EncodeToString(id[:])}, false, nil
	}
	if err != nil {
		return state{}, false, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return state{}, false, fmt.Errorf("%s: %w", stateFile(dir), err)
	}
	return s, true, nil
}

// save replaces the file as a whole, so that no reader ever finds a half.
func (s *state) save(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "run-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // renamed away unless something failed
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), stateFile(dir))
}

// openTranscript opens one of the output files for appending and tells how long it is.
func openTranscript(dir, name string) (*os.File, uint64, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, uint64(info.Size()), nil
}
