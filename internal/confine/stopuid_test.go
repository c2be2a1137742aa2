package confine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
)

// TestStopUID stops a tree of processes that fork all the time, some of them in a session of their own.
func TestStopUID(t *testing.T) {
	t.Parallel()
	const uid = testUID + 200 // nobody else's: all its processes are stopped
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	spec := shell(fmt.Sprintf(`cd %s; count() { i=0; while :; do i=$((i+1)); echo $i > $1; /bin/true; done; }; setsid sh -c 'while :; do echo x >> c; done' & count a & count b`, dir))
	spec.UID, spec.GID = uid, uid
	start(t, spec)
	sizes := func() string {
		var all []string
		for _, name := range []string{"a", "b", "c"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				return ""
			}
			all = append(all, fmt.Sprint(info.ModTime().UnixNano()))
		}
		return strings.Join(all, " ")
	}
	moves := func(from string) bool {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if now := sizes(); now != from {
				return true
			}
		}
		return false
	}
	for range 5 {
		if !moves("") || !moves(sizes()) {
			t.Fatal("it does not run")
		}
		if err := confine.StopUID(testContext(t), uid); err != nil {
			t.Fatal(err)
		}
		before := sizes()
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			if now := sizes(); now != before {
				t.Fatalf("%s, then %s", before, now)
			}
		}
		if err := confine.ContinueUID(testContext(t), uid); err != nil {
			t.Fatal(err)
		}
		if !moves(before) {
			t.Fatal("it does not go on")
		}
	}
	if err := confine.StopUID(testContext(t), uid); err != nil {
		t.Fatal(err)
	}
	if err := confine.EndUID(testContext(t), uid); err != nil {
		t.Errorf("end of what is stopped: %v", err)
	}
}

// TestStopUIDOfAChildThatIsWaitedFor: a process that waits in the kernel for its stopped child counts as stopped.
func TestStopUIDOfAChildThatIsWaitedFor(t *testing.T) {
	t.Parallel()
	const uid = testUID + 201
	vfork := confine.Spec{Path: "/usr/bin/perl", UID: uid, GID: uid,
		Args: []string{"-e", fmt.Sprintf("syscall(%d) or sleep 600; sleep 600", unix.SYS_VFORK)}}
	p := start(t, vfork)
	stat := func() string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))[0]
	}
	for end := time.Now().Add(20 * time.Second); stat() != "D"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the parent is in state %s", stat())
		}
	}
	if err := confine.StopUID(testContext(t), uid); err != nil {
		t.Fatal(err)
	}
	if err := confine.ContinueUID(testContext(t), uid); err != nil {
		t.Fatal(err)
	}
	if err := confine.EndUID(testContext(t), uid); err != nil {
		t.Fatal(err)
	}
}

func TestStopUIDRefusesOthers(t *testing.T) {
	t.Parallel()
	for _, uid := range []uint32{0, uint32(os.Getuid())} {
		if confine.StopUID(testContext(t), uid) == nil || confine.ContinueUID(testContext(t), uid) == nil {
			t.Errorf("uid %d was touched", uid)
		}
	}
}
