//go:build mutation

package control_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutation takes one rule out of the source.
type mutation struct{ name, file, old, new string }

func mutations() []mutation {
	return []mutation{
		{"a verb that has nothing to do does it again", "transition.go", "\t\top.Succeed(c.Now())\n\t\treturn nil\n\tcase sandbox.Moves:", "\tcase sandbox.Moves:"},
		{"a verb that has nothing to do is not answered at once", "transition.go", "op.Succeed(c.Now())\n\t\t\t\treturn box, nil", "box.OperationID = op.ID"},
		{"what waits is not judged by if_state when it runs", "transition.go", "checkState(asked.IfState, *box); err != nil", "checkState(asked.IfState, *box); false"},
		{"delete does not end what is under way", "delete.go", "c.engine.Interrupt(op.ID, superseded())", "_ = op"},
		{"extending a lease shortens it", "leases.go", "old.Left(now)+p.TTL", "p.TTL"},
		{"an Idempotency-Key is not remembered", "accept.go", "err == nil && c.Now().Sub(entry.CreatedAt) > idempotencyAge", "err == nil"},
		{"an Idempotency-Key serves any body", "accept.go", "entry.Fingerprint != call.Idempotency.Fingerprint", "false"},
	}
}

// TestMutations takes one rule after the other out of the source: each time the histories must find it.
func TestMutations(t *testing.T) {
	t.Parallel()
	for _, m := range mutations() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-failfast", "-overlay", overlay(t, m), "-run", "^TestHistoriesAgainstReference$",
				"-args", "-rapid.nofailfile", "-rapid.shrinktime=1ms")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("nothing was found:\n%s", out)
			}
			// A difference, not a program that does not build.
			if !strings.Contains(string(out), "[rapid] failed") {
				t.Errorf("it failed in another way: %v\n%s", err, out)
			}
		})
	}
}

// overlay makes a file for go test -overlay that replaces a source file by its mutation.
func overlay(t *testing.T, m mutation) string {
	t.Helper()
	path, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has %q %d times: this rule has moved", m.file, m.old, n)
	}
	dir := t.TempDir()
	mutant := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(mutant, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
