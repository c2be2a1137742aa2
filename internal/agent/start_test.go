package agent

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestOwnSession: each process leads a session and group of its own, without a terminal, with /dev/null as input.
func TestOwnSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	r := f.run(shell(`read -r pid comm state ppid pgrp session tty rest < /proc/$$/stat; echo $(( pid == pgrp )) $(( pid == session )) $tty; readlink /proc/$$/fd/0; exec ls /proc/self/fd`))
	lines := strings.Fields(r.stdout)
	if len(lines) < 4 || strings.Join(lines[:4], " ") != "1 1 0 /dev/null" {
		t.Fatalf("got %q", r.stdout)
	}
	inherited := 0 // what the test process itself was started with
	for fd := 3; fd < 1024; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			inherited++
		}
	}
	if n := len(lines) - 4; n != 4+inherited { // 0, 1, 2 and the directory that ls reads
		t.Errorf("the process has descriptors %v", lines[4:])
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	spec := &agentv1.ProcessSpec{Argv: []string{"env"}, Env: map[string]string{"A": "x y\n$(z)", "PATH": "/usr/bin:/bin"}}
	r := f.run(spec)
	for _, want := range []string{"A=x y\n$(z)\n", "PATH=/usr/bin:/bin\n", "HOME=", "USER=", "LOGNAME="} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in %q", want, r.stdout)
		}
	}
	if r := f.run(&agentv1.ProcessSpec{Argv: []string{"env"}}); !strings.Contains(r.stdout, "PATH="+defaultPath+"\n") {
		t.Errorf("no default PATH in %q", r.stdout)
	}
}

func TestWhyItCouldNotStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	plain := f.write("plain", "no program")
	script := f.write("script", "#!/no/such/interpreter\n")
	garbage := f.write("garbage", "\x01\x02\x03\x04")
	for _, p := range []string{script, garbage} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spec *agentv1.ProcessSpec
		code string
	}{
		"name":        {&agentv1.ProcessSpec{Argv: []string{"no-such-program"}}, startCommandNotFound},
		"path":        {&agentv1.ProcessSpec{Argv: []string{"/no/such/program"}}, startCommandNotFound},
		"empty PATH":  {&agentv1.ProcessSpec{Argv: []string{"sh"}, Env: map[string]string{"PATH": "/nowhere"}}, startCommandNotFound},
		"cwd":         {&agentv1.ProcessSpec{Argv: []string{"true"}, Cwd: "/no/such/dir"}, startCwdNotFound},
		"cwd a file":  {&agentv1.ProcessSpec{Argv: []string{"true"}, Cwd: plain}, startCwdNotFound},
		"user":        {&agentv1.ProcessSpec{Argv: []string{"true"}, User: "no-such-user"}, startUserNotFound},
		"huge uid":    {&agentv1.ProcessSpec{Argv: []string{"true"}, User: "4294967295"}, startUserNotFound},
		"not a prog":  {&agentv1.ProcessSpec{Argv: []string{plain}}, startPermissionDenied},
		"a directory": {&agentv1.ProcessSpec{Argv: []string{"/"}}, startPermissionDenied},
		"interpreter": {&agentv1.ProcessSpec{Argv: []string{script}}, startFailed},
		"garbage":     {&agentv1.ProcessSpec{Argv: []string{garbage}}, startFailed},
	} {
		r := f.run(c.spec)
		if r.exit.GetState() != stateFailed || r.exit.ErrorCode != c.code || r.exit.ErrorMessage == "" || r.exit.EndedAt == nil {
			t.Errorf("%s: %v, want %s", name, r.exit, c.code)
		}
	}
}

// TestOtherUsers: with privileges a process is the user that was asked for, in all ids; without, it is refused.
func TestOtherUsers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	secret := f.write("secret/program", "#!/bin/sh\n")
	if err := os.Chmod(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	const show = `grep -E '^(Uid|Gid|Groups|CapEff)' /proc/$$/status | tr -s ' \t' ' '; echo $HOME $USER $PWD`
	numeric, named := shell(show), shell(show)
	numeric.User, named.User = nobody, "worker"
	if !privileged() {
		if os.Geteuid() == 65534 {
			t.Fatal("run this test as root or as another user than 65534")
		}
		for _, spec := range []*agentv1.ProcessSpec{numeric, named} {
			if r := f.run(spec); r.exit.ErrorCode != startPermissionDenied {
				t.Errorf("user %s without privileges: %v", spec.User, r.exit)
			}
		}
		return
	}
	ids := "Uid: 65534 65534 65534 65534\nGid: 65534 65534 65534 65534\n"
	none := "CapEff: 0000000000000000\n"
	want := ids + "Groups: 4242 65534 \n" + none + f.dir + " worker " + f.dir + "\n"
	for _, spec := range []*agentv1.ProcessSpec{numeric, named} { // passwd of the fixture has both
		if r := f.run(spec); r.stdout != want {
			t.Errorf("user %s: got %q, want %q", spec.User, r.stdout, want)
		}
	}
	unknown := shell(show)
	unknown.User = "65533"
	if r := f.run(unknown); !strings.HasSuffix(r.stdout, none+"/ 65533 /\n") || !strings.HasPrefix(r.stdout, "Uid: 65533") {
		t.Errorf("uid without an entry: %q", r.stdout)
	}
	for name, spec := range map[string]*agentv1.ProcessSpec{
		"cwd":     {Argv: []string{"true"}, User: nobody, Cwd: filepath.Dir(secret)},
		"program": {Argv: []string{secret}, User: nobody},
	} {
		if r := f.run(spec); r.exit.ErrorCode != startPermissionDenied {
			t.Errorf("%s out of reach: %v", name, r.exit)
		}
	}
}

// TestUserDatabaseMissing: root and numeric users need no passwd file.
func TestUserDatabaseMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Etc = "/no/such/dir" })
	if r := f.run(shell("echo $USER")); r.exit.GetExitCode() != 0 || r.stdout == "\n" {
		t.Errorf("own user: %q, %v", r.stdout, r.exit)
	}
	db := userDatabase{dir: "/no/such/dir"}
	if a, err := db.lookup(strconv.Itoa(os.Geteuid())); err != nil || a.uid != os.Geteuid() {
		t.Errorf("own uid: %+v, %v", a, err)
	}
}

// TestUserDatabaseSpecialFile: a fifo in place of passwd must not hold up the agent.
func TestUserDatabaseSpecialFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "passwd"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (userDatabase{dir: dir}).lookup("root"); err == nil {
		t.Error("a fifo was taken for the user database")
	}
}

// TestGroupsParsing checks the reading of group lines, with broken ones among them.
func TestGroupsParsing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	group := "a:x:10:u\nb:x:11:v,u\nbroken\nc:x:no:u\nd:x:-1:u\ne:x:12:uu\nf:x:20:u\nself:x:20:\n"
	if err := os.WriteFile(filepath.Join(dir, "group"), []byte(group), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, err := (userDatabase{dir: dir}).read("group")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(memberships(lines, account{name: "u", uid: 5, gid: 20}))
	if got != "[20 10 11]" {
		t.Errorf("groups %s", got)
	}
}

// TestOnlyUser: with Only, even a privileged agent acts as that user and no other.
func TestOnlyUser(t *testing.T) {
	t.Parallel()
	uid, gid := uint32(65534), uint32(65534)
	if !privileged() {
		uid, gid = uint32(os.Geteuid()), uint32(os.Getegid())
	}
	f := newFixture(t, func(c *Config) { c.Only = &Only{UID: uid, GID: gid} })
	r := f.run(shell(`grep -E '^(Uid|Gid)' /proc/$$/status | tr -s ' \t' ' '`))
	want := fmt.Sprintf("Uid: %[1]d %[1]d %[1]d %[1]d\nGid: %[2]d %[2]d %[2]d %[2]d\n", uid, gid)
	if r.stdout != want {
		t.Errorf("got %q, want %q", r.stdout, want)
	}
	root := shell("true")
	root.User = "root"
	if r := f.run(root); r.exit.ErrorCode != startPermissionDenied {
		t.Errorf("root: %v", r.exit)
	}
	f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/etc/passwd", "user", "root")
	f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/etc/shadow")
}

// groupMachine starts processes in a given control group.
type groupMachine struct {
	recorder
	fd int
}

func (m *groupMachine) UserGroup() int { return m.fd }

// TestControlGroupBeforeExec: the kernel is asked to start the process in the machine's group. What is no group is
// refused by the kernel, so the program has not run outside of it.
func TestControlGroupBeforeExec(t *testing.T) {
	t.Parallel()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f := newFixture(t, func(c *Config) { c.Machine = &groupMachine{fd: int(dir.Fd())} })
	mark := filepath.Join(f.dir, "ran")
	if r := f.run(&agentv1.ProcessSpec{Argv: []string{"touch", mark}}); r.exit.ErrorCode != startFailed {
		t.Errorf("%v", r.exit)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the program ran outside its group")
	}
}
