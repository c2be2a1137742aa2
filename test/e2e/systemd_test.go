//go:build realvm

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSystemdUnit checks the unit as systemd reads it: with the program that was built in place of the installed one.
// Running it needs a host with systemd as its init.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../deploy/systemd/space.service")
	if err != nil {
		t.Fatal(err)
	}
	const installed = "/usr/local/bin/space"
	for _, line := range []string{"KillMode=process", "Delegate=yes", "DelegateSubgroup=daemons", "OOMPolicy=continue", "ExecStart=" + installed + " up --data-dir /var/lib/space"} {
		if !bytes.Contains(unit, []byte("\n"+line+"\n")) {
			t.Errorf("the unit does not say %q", line)
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "space.service")
	//nolint:gosec // a unit may be read by anybody
	if err := os.WriteFile(path, bytes.Replace(unit, []byte(installed), []byte(filepath.Join(environment(t, "SPACE_TEST_BIN"), "space")), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if complaints := verifyUnit(t, path); complaints != "" {
		t.Errorf("systemd-analyze verify:\n%s", complaints)
	}
	broken := bytes.Replace(unit, []byte("KillMode=process"), []byte("KillMode=sometimes"), 1)
	//nolint:gosec // as above
	if err := os.WriteFile(path, broken, 0o644); err != nil {
		t.Fatal(err)
	}
	if verifyUnit(t, path) == "" {
		t.Error("systemd-analyze finds nothing wrong with a unit that is wrong")
	}
}

// verifyUnit returns what systemd has against a unit, but for the one key that only newer versions know.
func verifyUnit(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
	var complaints []string
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "Unknown key") || !strings.Contains(line, "'DelegateSubgroup'") {
			complaints = append(complaints, line)
		}
	}
	if err != nil {
		complaints = append(complaints, err.Error())
	}
	return strings.Join(complaints, "")
}
