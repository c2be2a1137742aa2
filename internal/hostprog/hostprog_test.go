package hostprog

import (
	"os/exec"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	t.Parallel()
	if path, found := Find("sh"); !found || !strings.HasSuffix(path, "/bin/sh") {
		t.Errorf("sh: %q, %v", path, found)
	}
	for _, name := range []string{"no-such-program", "", ".", "apt.d"} {
		if path, found := Find(name); found {
			t.Errorf("%q is %q", name, path)
		}
	}
	if err := exec.CommandContext(t.Context(), Path("no-such-program")).Run(); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("error %v", err)
	}
}

func TestEnvSetsThePath(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), Path("sh"), "-c", "echo $PATH $MORE")
	cmd.Env = Env("MORE=more")
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != "/usr/sbin:/usr/bin:/sbin:/bin more" {
		t.Errorf("%q, %v", out, err)
	}
}
