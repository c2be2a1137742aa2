package confine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDaemonsLeaf: in a control group that was delegated to us, as systemd does it, our process goes into a leaf of its own, once.
func TestDaemonsLeaf(t *testing.T) {
	t.Parallel()
	if os.Getenv("SPACE_TEST_LEAF") != "" { // the process below
		var line string
		if _, err := fmt.Scanln(&line); err != nil {
			t.Fatal(err)
		}
		if err := JoinDaemons(); err != nil {
			t.Fatal(err)
		}
		if err := JoinDaemons(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s", text)
		return
	}
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(h hierarchy) bool { return h.unified })
	if at < 0 || os.Getuid() != 0 {
		t.Fatal("needs root and a mounted cgroup2")
	}
	unit := filepath.Join(all[at].base, "space-test-"+strconv.Itoa(os.Getpid())+".service")
	if err := os.Mkdir(unit, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{filepath.Join(unit, daemonsLeaf), unit} {
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("%s: %v", dir, err)
			}
		}
	})
	if err := unix.Setxattr(unit, "trusted.delegate", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestDaemonsLeaf$")
	cmd.Env = append(os.Environ(), "SPACE_TEST_LEAF=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	moved := writeFile(unit, "cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	if _, err := stdin.Write([]byte("go\n")); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil || moved != nil {
		t.Fatalf("%v %v: %s", moved, err, out.String())
	}
	if want := filepath.Base(unit) + "/" + daemonsLeaf + "\n"; !strings.Contains(out.String(), want) {
		t.Errorf("it is in %q, want %q", out.String(), want)
	}
}
