package confine_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
)

// The tests need root, as the package does: ids, groups and namespaces are what it is about.

const testUID, testGID = 61234, 61235

// start starts a process of which nothing is left after the test.
func start(t *testing.T, spec confine.Spec) *confine.Process {
	t.Helper()
	p, err := confine.Start(spec)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Kill(testContext(t)); err != nil {
			t.Errorf("Kill: %v", err)
		}
		p.Close()
	})
	return p
}

// output runs a program to its end and returns what it wrote.
func output(t *testing.T, spec confine.Spec) (string, confine.Status) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	spec.Stdout, spec.Stderr = out, out
	status, err := start(t, spec).Wait(testContext(t))
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	data, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data), status
}

func shell(script string) confine.Spec {
	return confine.Spec{Path: "/bin/sh", Args: []string{"-c", script}, UID: testUID, GID: testGID,
		Env: []string{"PATH=/usr/bin:/bin"}}
}

func sleeper() confine.Spec {
	return confine.Spec{Path: "/bin/sleep", Args: []string{"600"}, UID: testUID, GID: testGID}
}

func TestStartSetsIdentityAndPrivileges(t *testing.T) {
	t.Parallel()
	text, status := output(t, shell(`cat /proc/self/status; exit 7`))
	if status != (confine.Status{Known: true, ExitCode: 7}) {
		t.Errorf("status = %+v", status)
	}
	got := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			got[k] = strings.Join(strings.Fields(v), " ")
		}
	}
	want := map[string]string{
		"Uid": "61234 61234 61234 61234", "Gid": "61235 61235 61235 61235", "Groups": "", "NoNewPrivs": "1",
		"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapInh": "0000000000000000",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s = %q, want %q", k, got[k], v)
		}
	}
}

// The thread that was restricted for a child must not live on in this process.
func TestStartLeavesThisProcessAlone(t *testing.T) {
	t.Parallel()
	for range 20 {
		spec := shell("true")
		spec.Landlock = &confine.Landlock{ReadOnly: []string{"/usr", "/bin", "/lib", "/lib64"}}
		spec.Rlimits = []confine.Rlimit{{Resource: unix.RLIMIT_CORE}}
		output(t, spec)
	}
	deadline := time.After(10 * time.Second)
	look := time.NewTicker(time.Millisecond) // a thread ends a moment after the goroutine on it
	defer look.Stop()
	for {
		tainted := taintedThreads(t)
		if len(tainted) == 0 {
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("threads with no_new_privs: %v", tainted)
		}
	}
}

func taintedThreads(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(files) == 0 {
		t.Fatalf("threads: %v %v", files, err)
	}
	var out []string
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), "NoNewPrivs:\t1") {
			out = append(out, f)
		}
	}
	return out
}

func TestStartClosesEverythingElse(t *testing.T) {
	t.Parallel()
	// One like those that a parent may leave open by mistake: without close-on-exec.
	leaked, err := unix.Open("/dev/zero", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	mine, err := os.Open("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	ready, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	spec := shell("echo loaded; exec 1>/dev/null; kill -STOP $$")
	spec.Files, spec.Stdout = []*os.File{mine, mine}, stdout
	p := start(t, spec)
	stdout.Close()
	if _, err := io.ReadAll(ready); err != nil { // ends when the loader is done and the shell has let go of the pipe
		t.Fatal(err)
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		got[e.Name()], _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.PID(), e.Name()))
	}
	want := map[string]string{"0": "/dev/null", "1": "/dev/null", "2": "/dev/null", "3": "/proc/version", "4": "/proc/version"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("descriptors (-want +got):\n%s", d)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]confine.Spec{
		"relative path":    {Path: "sh"},
		"no such program":  {Path: "/nonexistent/program"},
		"not a program":    {Path: "/etc/passwd"},
		"no such device":   {Path: "/bin/true", Namespaces: confine.Namespaces{Mount: true, Devices: []string{"/dev/nonexistent"}}},
		"device elsewhere": {Path: "/bin/true", Namespaces: confine.Namespaces{Mount: true, Devices: []string{"/etc/passwd"}}},
		"devices alone":    {Path: "/bin/true", Namespaces: confine.Namespaces{Devices: []string{"/dev/null"}}},
		"nil file":         {Path: "/bin/true", Files: []*os.File{nil}},
		"limited and gone": {Path: "/nonexistent/program", Rlimits: []confine.Rlimit{{Resource: unix.RLIMIT_CORE}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if p, err := confine.Start(spec); err == nil {
				p.Kill(testContext(t))
				t.Error("it started")
			}
		})
	}
}

func TestLandlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(name+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	readable, hidden, passed := write("readable"), write("hidden"), write("passed")
	for p := filepath.Dir(dir); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.OpenFile(passed, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	readonly, err := os.Open(readable)
	if err != nil {
		t.Fatal(err)
	}
	defer readonly.Close()
	script := fmt.Sprintf(`
try() { if (eval "$2") 2>/dev/null; then echo "$1 yes"; else echo "$1 no"; fi; }
try read 'cat %[1]s >/dev/null'
try write 'echo x >>%[1]s'
try hidden 'cat %[2]s'
try reopen 'echo y >>/proc/self/fd/3'
try reopen-readonly 'cat </proc/self/fd/4'
try reopen-more 'echo y >>/proc/self/fd/4'
try make 'echo x >%[3]s/new'
`, readable, hidden, dir)
	spec := shell(script)
	spec.Files = []*os.File{file, readonly}
	restricted := spec
	restricted.Landlock = &confine.Landlock{ReadOnly: []string{"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/nonexistent", readable},
		ReadWrite: []string{"/dev/null"}}
	got, _ := output(t, restricted)
	control, _ := output(t, spec)
	if strings.Count(control, " yes\n") != 6 { // all but make: the directory is root's
		t.Errorf("without landlock:\n%s", control)
	}
	want := "read yes\nwrite no\nhidden no\nreopen yes\nreadable\nreopen-readonly yes\nreopen-more no\nmake no\n"
	if got != want {
		t.Errorf("with landlock:\n%s", got)
	}
}

func TestRlimitsHoldFromTheStart(t *testing.T) {
	t.Parallel()
	spec := shell(`ulimit -Hn; ulimit -Sn; ulimit -Hc; ulimit -Sc; ulimit -n 65 2>/dev/null || echo refused`)
	spec.Rlimits = []confine.Rlimit{{Resource: unix.RLIMIT_NOFILE, Value: 64}, {Resource: unix.RLIMIT_CORE, Value: 0}}
	got, status := output(t, spec)
	if want := "64\n64\n0\n0\nrefused\n"; got != want || status.ExitCode != 0 {
		t.Errorf("%v, limits:\n%s", status, got)
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	spec := shell(`ls -l /proc/self/ns; echo "pid $$"; tail -n +3 /proc/net/dev; ls -ln /dev; cat /dev/zero | head -c 3 | wc -c`)
	spec.Namespaces = confine.Namespaces{Net: true, IPC: true, PID: true, Mount: true, Devices: []string{"/dev/tty"}}
	spec.Landlock = &confine.Landlock{ReadOnly: []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev"}}
	got, status := output(t, spec)
	if status.ExitCode != 0 || !strings.Contains(got, "pid 1\n") {
		t.Errorf("%v\n%s", status, got)
	}
	for _, ns := range []string{"net", "ipc", "pid", "mnt"} {
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, ours) {
			t.Errorf("%s is ours:\n%s", ns, got)
		}
	}
	if n := strings.Count(got, "crw"); n != 6 || !strings.Contains(got, "crw------- 1 61234 61235 5") {
		t.Errorf("devices:\n%s", got)
	}
}

// A machine's copy of the mounts would keep alive what others have deleted meanwhile.
func TestForeignMountsAreNotKept(t *testing.T) {
	t.Parallel()
	kept := filepath.Join(t.TempDir(), "kept namespace")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/uts", kept, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(kept, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	spec := shell(`cat /proc/self/mounts`)
	control, _ := output(t, spec)
	spec.Namespaces.Mount = true
	got, status := output(t, spec)
	name := `kept\040namespace`
	if !strings.Contains(control, name) || strings.Contains(got, name) || status.ExitCode != 0 || !strings.Contains(got, " /proc ") {
		t.Errorf("%v, with a copy of its own:\n%s\nwithout:\n%s", status, got, control)
	}
}

func TestUserNamespaceWithLandlock(t *testing.T) {
	t.Parallel()
	spec := shell(`id -u; id -g; cat /proc/self/uid_map; cat /etc/shadow && echo readable; ulimit -n`)
	spec.UID, spec.GID = 0, 0
	maps := []confine.IDMap{{Inside: 0, Outside: 700_000, Size: 65536}}
	spec.Namespaces = confine.Namespaces{User: &confine.UserNamespace{UIDs: maps, GIDs: maps}, Net: true, Mount: true, IPC: true}
	spec.Landlock = &confine.Landlock{ReadOnly: []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/dev"}}
	spec.Rlimits = []confine.Rlimit{{Resource: unix.RLIMIT_NOFILE, Value: 32}}
	got, _ := output(t, spec)
	if f := strings.Fields(got); len(f) < 6 || f[0] != "0" || f[1] != "0" || f[3] != "700000" || f[len(f)-1] != "32" {
		t.Errorf("got:\n%s", got)
	}
	if strings.Contains(got, "readable") {
		t.Error("root inside reads root's file outside")
	}
}

func TestWaitByMany(t *testing.T) {
	t.Parallel()
	p := start(t, sleeper())
	results := make(chan confine.Status, 8)
	for range cap(results) {
		go func() {
			st, err := p.Wait(testContext(t))
			if err != nil {
				t.Errorf("Wait: %v", err)
			}
			results <- st
		}()
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range cap(results) {
		if st := <-results; st.Signal != syscall.SIGTERM || !st.Known {
			t.Errorf("status = %+v", st)
		}
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("not reaped: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	p := start(t, sleeper())
	id := p.Identity()
	for name, c := range map[string]struct {
		change func(*confine.Identity)
		want   error
	}{
		"same":       {func(*confine.Identity) {}, nil},
		"start time": {func(i *confine.Identity) { i.StartTime++ }, confine.ErrNotOurs},
		"boot id":    {func(i *confine.Identity) { i.BootID = "another" }, confine.ErrGone},
		"uid":        {func(i *confine.Identity) { i.UID++ }, confine.ErrNotOurs},
		"group":      {func(i *confine.Identity) { i.Cgroup = "space-x/vm-y" }, confine.ErrNotOurs},
		"no pid":     {func(i *confine.Identity) { i.PID = 0 }, confine.ErrGone},
		"init":       {func(i *confine.Identity) { i.PID = 1 }, confine.ErrGone},
	} {
		changed := id
		c.change(&changed)
		a, err := confine.Adopt(changed)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil {
			a.Close()
			if _, err := a.Wait(testContext(t)); !errors.Is(err, confine.ErrClosed) {
				t.Errorf("Wait after Close: %v", err)
			}
		}
	}
	a, err := confine.Adopt(id)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := confine.Adopt(id); !errors.Is(err, confine.ErrGone) {
		t.Errorf("adopting what has ended: %v", err)
	}
}

func TestEndUID(t *testing.T) {
	t.Parallel()
	const uid = 61236
	spec := shell(`setsid sleep 600 & (sleep 600 & sleep 600) & exec sleep 600`)
	spec.UID = uid
	p := start(t, spec)
	bystander := start(t, sleeper())
	if err := confine.EndUID(testContext(t), uid); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(testContext(t)); err != nil || st.Signal != syscall.SIGKILL {
		t.Errorf("%v %v", st, err)
	}
	select {
	case <-bystander.Done():
		t.Error("another uid's process was ended")
	default:
	}
	for _, uid := range []uint32{0, uint32(os.Getuid())} {
		if err := confine.EndUID(testContext(t), uid); err == nil {
			t.Errorf("uid %d was ended", uid)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	f, err := confine.NewOutput(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spec := shell(`echo first; yes 2>&1 | head -c 100000; true`)
	spec.Stdout, spec.Stderr = f, f
	if _, err := start(t, spec).Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	text, err := confine.ReadOutput(f)
	if err != nil || len(text) != 4096 || !strings.HasPrefix(string(text), "first\ny\n") {
		t.Errorf("%d bytes, %v: %.40q", len(text), err, text)
	}
}
