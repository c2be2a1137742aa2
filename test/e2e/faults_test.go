//go:build realvm

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// onFake is an installation with the fake driver.
func onFake(t *testing.T) *installation {
	t.Helper()
	return installWith(t, installation{bin: environment(t, "SPACE_TEST_BIN"), driver: "fake", env: []string{"SPACE_ALLOW_FAKE=1"}})
}

// smallStore puts the store on a file system of its own. It returns its mount point.
func (i *installation) smallStore() string {
	i.t.Helper()
	dir := filepath.Join(i.dir, "control")
	owner, err := os.Stat(dir)
	if err != nil {
		i.t.Fatal(err)
	}
	kept := i.t.TempDir()
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		i.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			i.t.Error(err)
		}
	})
	if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
		i.t.Fatal(err)
	}
	st := owner.Sys().(*syscall.Stat_t)
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, int(st.Uid), int(st.Gid))
	})
	if err != nil {
		i.t.Fatal(err)
	}
	return dir
}

// TestStoreWithoutSpace: with a full file system under the store, what is asked for is refused with nothing done, what runs
// goes on, reads work, and all is well again as soon as there is room, without a restart.
func TestStoreWithoutSpace(t *testing.T) {
	t.Parallel()
	i := onFake(t)
	dir := i.smallStore()
	i.start()
	box := i.create(apiv1.CreateSandbox{Name: "kept"})
	pid, _ := i.partPID(part.Control)
	fill(t, dir)
	i.storeRefuses(box)
	must(t, os.Remove(filepath.Join(dir, "filler")))
	i.eventually(30*time.Second, "it can be written again", func() bool {
		_, err := i.client.PatchSandbox(t.Context(), "kept", apiv1.PatchSandbox{Metadata: &map[string]string{"a": "b"}})
		return err == nil
	})
	if now, _ := i.partPID(part.Control); now != pid {
		t.Errorf("control was %d, is %d", pid, now)
	}
	list, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{})
	if err != nil || len(list.Items) != 1 || list.Items[0].State != "running" {
		t.Errorf("what was refused has happened: %+v %v", list, err)
	}
	i.pause("kept")
	i.resume("kept")
	i.delete("kept")
}

// TestReadOnlyStore: control does not start on a store that it cannot write, and says so; machines go on meanwhile.
func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	i := onFake(t)
	dir := i.smallStore()
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	pid, _ := i.findVMM(box.ID)
	stop := func() {
		must(t, i.up.Process.Signal(syscall.SIGTERM))
		<-i.ended
	}
	stop()
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	began := i.launch()
	i.eventually(30*time.Second, "the log says that it is read-only", func() bool {
		return strings.Contains(i.log.text(), "read-only file system")
	})
	select {
	case line := <-began:
		t.Errorf("it says that it is ready: %s", line)
	default:
	}
	_ = i.up.Process.Signal(syscall.SIGTERM) // it may have given up by itself
	<-i.ended
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"))
	i.start()
	if processState(pid) == "" {
		t.Error("the machine has not lived through it")
	}
	i.pause(box.ID)
	i.delete(box.ID)
}

// fill takes all of the space of a file system, also what the store would find by itself.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !strings.Contains(err.Error(), "no space") {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storeRefuses makes calls until one is refused: a store may still find a little room.
func (i *installation) storeRefuses(box apiv1.Sandbox) {
	i.t.Helper()
	filler := map[string]string{"filler": strings.Repeat("x", 256)}
	i.eventually(30*time.Second, "the store refuses", func() bool {
		_, err := i.client.PatchSandbox(i.t.Context(), box.ID, apiv1.PatchSandbox{Metadata: &filler})
		return client.Code(err) == "internal" || client.Code(err) == "unavailable"
	})
	for what, call := range map[string]func() error{
		"create": func() error {
			_, err := i.client.CreateSandbox(i.t.Context(), apiv1.CreateSandbox{Template: "mini"})
			return err
		},
		"pause":  func() error { _, err := i.client.PauseSandbox(i.t.Context(), box.ID); return err },
		"delete": func() error { _, err := i.client.DeleteSandbox(i.t.Context(), box.ID); return err },
	} {
		if err := call(); err == nil || client.Code(err) == "" {
			i.t.Errorf("%s with a store that cannot be written: %v", what, err)
		}
	}
	if got, err := i.client.Sandbox(i.t.Context(), box.ID); err != nil || got.State != "running" {
		i.t.Errorf("reading: %+v %v", got, err)
	}
}

// limitFiles sets how many descriptors a process may have, as the user that it runs as.
func (i *installation) limitFiles(pid int, soft string) {
	i.t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	must(i.t, err)
	st := info.Sys().(*syscall.Stat_t)
	cmd := exec.CommandContext(i.t.Context(), "prlimit", "--pid", strconv.Itoa(pid), "--nofile="+soft+":")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: st.Uid, Gid: st.Gid}}
	if out, err := cmd.CombinedOutput(); err != nil {
		i.t.Fatalf("prlimit: %v: %s", err, out)
	}
}

// TestNoDescriptors takes the descriptors of each part away for a while: it goes on as the same process afterwards.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	i := onFake(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{Name: "box"})
	for _, name := range []string{part.Control, part.Node, part.Gateway} {
		pid, ok := i.partPID(name)
		if !ok {
			t.Fatalf("no process %s", name)
		}
		i.limitFiles(pid, "3")
		for n := range 5 { // new connections to each of them
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			c := client.New(i.url, i.client.Key)
			c.HTTPClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			_, err := c.Exec(ctx, box.ID, apiv1.Exec{Argv: []string{"true"}, Cwd: "/"})
			if name == part.Control && err == nil {
				t.Error("control has answered without a descriptor for the connection")
			}
			_, _ = c.CreateSandbox(ctx, apiv1.CreateSandbox{Template: "mini", Name: fmt.Sprintf("%s-%d", name, n)})
			cancel()
		}
		i.limitFiles(pid, "4096")
		i.eventually(time.Minute, "exec works again after "+name, func() bool {
			res, err := i.client.Exec(t.Context(), box.ID, apiv1.Exec{Argv: []string{"echo", "here"}, Cwd: "/"})
			return err == nil && res.Stdout == "here\n"
		})
		if now, _ := i.partPID(name); now != pid {
			t.Errorf("%s was %d, is %d", name, pid, now)
		}
	}
	list, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{})
	must(t, err)
	for _, box := range list.Items { // each of them ended in one way or another
		i.eventually(time.Minute, "the operations on "+box.Name+" have ended", func() bool {
			got, err := i.client.Sandbox(t.Context(), box.ID)
			return err == nil && got.OperationID == ""
		})
		i.delete(box.ID)
	}
	i.eventually(10*time.Second, "the ledger is exact", func() bool {
		got, err := i.client.Ledger(t.Context())
		return err == nil && got.Drift == 0
	})
}

// TestStoppedVMM: a VMM that does not run can be neither paused nor asked, and every call ends in bounded time. Delete works.
func TestStoppedVMM(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{})
	pid := i.vmmPID(box.ID)
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	began := time.Now()
	res, err := i.client.PauseSandbox(t.Context(), box.ID, client.Wait(2*time.Minute))
	if took := time.Since(began); client.Code(err) != "vmm_failed" || took > 40*time.Second {
		t.Errorf("pause of a stopped VMM: %+v %v after %s", res, err, took)
	}
	i.eventually(time.Minute, "the sandbox is at rest", func() bool {
		got, err := i.client.Sandbox(t.Context(), box.ID)
		return err == nil && got.State == "running" && got.OperationID == ""
	})
	if _, err := i.client.PauseSandbox(t.Context(), box.ID); err != nil { // delete does not wait for it
		t.Error(err)
	}
	began = time.Now()
	i.delete(box.ID)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("its delete took %s", took)
	}
	if processState(pid) != "" {
		t.Error("the VMM is there")
	}
}
