//go:build realvm

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// diskMiB is small, so that it can be filled, and larger than the template, so that it must have been grown.
const diskMiB = 256

// TestFirstSandbox walks through the API on one microVM.
func TestFirstSandbox(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	disk := diskMiB
	box := i.create(apiv1.CreateSandbox{Name: "first", DiskMiB: &disk, Env: map[string]string{"FROM_SANDBOX": "yes", "BOTH": "sandbox"}, Metadata: map[string]string{"team": "x"}})
	if !strings.HasPrefix(box.Isolation, "microvm/") || box.Driver != "qemu" {
		t.Errorf("driver %q, isolation %q", box.Driver, box.Isolation)
	}
	if !strings.HasPrefix(box.Template.Digest, "sha256:") || box.Template.Ref != "mini:latest" {
		t.Errorf("template %+v", box.Template)
	}
	clock := i.readClock("first")
	t.Run("exec", func(t *testing.T) { testExec(t, i) })
	t.Run("identity", func(t *testing.T) { testIdentity(t, i) })
	t.Run("attach", func(t *testing.T) { testAttach(t, i) })
	t.Run("output", func(t *testing.T) { testOutput(t, i) })
	t.Run("signal", func(t *testing.T) { testSignal(t, i) })
	t.Run("files", func(t *testing.T) { testFiles(t, i) })
	t.Run("records", func(t *testing.T) { testRecords(t, i, box) })
	t.Run("idempotency", func(t *testing.T) { testIdempotency(t, i) })
	t.Run("clock", func(t *testing.T) { testClock(t, clock, i.readClock("first")) })
	i.delete("first")
	if _, err := i.client.Sandbox(t.Context(), box.ID); client.Code(err) != "not_found" {
		t.Errorf("after delete: %v", err)
	}
}

func testExec(t *testing.T, i *installation) {
	res := i.exec("first", apiv1.Exec{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}})
	if res.ExitCode == nil || *res.ExitCode != 3 || res.Stdout != "out\n" || res.Stderr != "err\n" || res.State != "exited" {
		t.Errorf("got %+v", res)
	}
	all := make([]byte, 256)
	for b := range all {
		all[b] = byte(b)
	}
	res = i.exec("first", apiv1.Exec{Argv: []string{"cat"}, StdinB64: base64.StdEncoding.EncodeToString(all)})
	if out, err := base64.StdEncoding.DecodeString(res.Stdout); err != nil || res.Encoding != "base64" || !bytes.Equal(out, all) {
		t.Errorf("all byte values came back as %q (%s)", res.Stdout, res.Encoding)
	}
	env := i.exec("first", apiv1.Exec{Argv: []string{"sh", "-c", "echo $FROM_SANDBOX $BOTH $HOME $USER; pwd"}, Env: map[string]string{"BOTH": "command"}})
	if env.Stdout != "yes command /home/user user\n/home/user\n" {
		t.Errorf("environment: %q", env.Stdout)
	}
	for code, in := range map[string]apiv1.Exec{
		"command_not_found": {Argv: []string{"/no/such/program"}},
		"cwd_not_found":     {Argv: []string{"true"}, Cwd: "/no/such/directory"},
		"user_not_found":    {Argv: []string{"true"}, User: "nobody-of-this-name"},
	} {
		res := i.exec("first", in)
		if res.State != "failed" || res.Error == nil || res.Error.Code != code {
			t.Errorf("%s: state %s, error %+v", code, res.State, res.Error)
		}
	}
	res = i.exec("first", apiv1.Exec{Argv: []string{"sleep", "60"}, TimeoutSeconds: 0.5})
	if res.Error == nil || res.Error.Code != "deadline_exceeded" || res.Signal == nil || *res.Signal != "SIGKILL" {
		t.Errorf("deadline: %+v", res)
	}
}

func testIdentity(t *testing.T, i *installation) {
	if got := i.sh("first", "id -u; cat /proc/sys/kernel/hostname; cat /proc/1/comm"); got != "1000\nfirst\nspace-agent\n" && got != "1000\nfirst\ninit\n" {
		t.Errorf("uid, host name and PID 1: %q", got)
	}
	res := i.exec("first", apiv1.Exec{Argv: []string{"id", "-u"}, User: "root"})
	if res.Stdout != "0\n" {
		t.Errorf("as root: %q", res.Stdout)
	}
	guest := strings.TrimSpace(i.sh("first", "date +%s"))
	host := time.Now().Unix()
	var at int64
	for _, c := range guest {
		at = at*10 + int64(c-'0')
	}
	if d := host - at; d < -5 || d > 5 {
		t.Errorf("the guest's clock is %d s off", d)
	}
	size := strings.Fields(i.sh("first", "df -k / | tail -n 1"))
	kib, err := strconv.Atoi(size[1])
	if err != nil || kib < 200<<10 || kib > diskMiB<<10 {
		t.Errorf("root file system of a %d MiB disk: %v KiB", diskMiB, size)
	}
}

func testAttach(t *testing.T, i *installation) {
	cmd, err := i.client.CreateCommand(t.Context(), "first", apiv1.CreateCommand{Argv: []string{"sh", "-c", "echo started; read line; echo got $line; exit 7"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := i.client.Command(t.Context(), cmd.ID); err != nil || got.State != "created" {
		t.Fatalf("before the first attach: %v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, in := io.Pipe()
	a, err := i.client.Attach(ctx, cmd.ID, client.AttachOptions{Stdout: in})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len("started\n"))
	if _, err := io.ReadFull(out, buf); err != nil || string(buf) != "started\n" {
		t.Fatalf("live output %q, %v", buf, err)
	}
	if _, err := a.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, len("got hello\n"))
	if _, err := io.ReadFull(out, rest); err != nil || string(rest) != "got hello\n" {
		t.Fatalf("answer %q, %v", rest, err)
	}
	exit, err := a.Wait()
	if err != nil || exit.ExitCode == nil || *exit.ExitCode != 7 {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func testOutput(t *testing.T, i *installation) {
	cmd, err := i.client.CreateCommand(t.Context(), "first", apiv1.CreateCommand{Argv: []string{"sh", "-c", "for n in 1 2 3 4; do echo $n; done"}})
	if err != nil {
		t.Fatal(err)
	}
	read := func(offset uint64) string {
		o, err := i.client.Output(t.Context(), cmd.ID, &cmd.Attach, client.OutputOptions{Stream: "stdout", Offset: offset, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		data, err := io.ReadAll(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := []string{read(0), read(4), read(8)}; cmp.Diff([]string{"1\n2\n3\n4\n", "3\n4\n", ""}, got) != "" {
		t.Errorf("output from offsets 0, 4, 8: %q", got)
	}
}

func testSignal(t *testing.T, i *installation) {
	cmd, err := i.client.CreateCommand(t.Context(), "first", apiv1.CreateCommand{Argv: []string{"sleep", "600"}, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.client.Signal(t.Context(), cmd.ID, "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	got, err := i.client.WaitCommand(t.Context(), cmd.ID)
	if err != nil || got.Signal == nil || *got.Signal != "SIGTERM" || *got.ExitCode != -1 {
		t.Errorf("after SIGTERM: %+v, %v", got, err)
	}
}

func testFiles(t *testing.T, i *installation) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	w, err := i.client.WriteFile(t.Context(), "first", "big.bin", bytes.NewReader(content), client.FileOptions{})
	if err != nil || w.SizeBytes != int64(len(content)) {
		t.Fatalf("write: %+v, %v", w, err)
	}
	f, err := i.client.ReadFile(t.Context(), "first", "/home/user/big.bin", client.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read back %d bytes, %v", len(got), err)
	}
	if owner := i.sh("first", "stat -c %U:%s big.bin"); owner != "user:1048576\n" {
		t.Errorf("owner and size %q", owner)
	}
	for code, path := range map[string]string{"not_found": "missing/file", "is_directory": "/home/user"} {
		if _, err := i.client.ReadFile(t.Context(), "first", path, client.FileOptions{}); client.Code(err) != code {
			t.Errorf("read %s: %v, want %s", path, err, code)
		}
		if _, err := i.client.WriteFile(t.Context(), "first", path, strings.NewReader("x"), client.FileOptions{}); client.Code(err) != code {
			t.Errorf("write %s: %v, want %s", path, err, code)
		}
	}
	// A disk that is full: the answer says so, and no half file is left.
	i.sh("first", "mkdir full; dd if=/dev/zero of=fill bs=64k; true")
	if _, err := i.client.WriteFile(t.Context(), "first", "full/big", bytes.NewReader(content), client.FileOptions{}); client.Code(err) != "guest_disk_full" {
		t.Errorf("full disk: %v", err)
	}
	if left := i.sh("first", "rm fill; ls -A full"); left != "" {
		t.Errorf("left on the full disk: %q", left)
	}
}

func testRecords(t *testing.T, i *installation, box apiv1.Sandbox) {
	byName, err := i.client.Sandbox(t.Context(), "first")
	if err != nil || byName.ID != box.ID {
		t.Errorf("by name: %v, %v", byName, err)
	}
	if _, err := i.client.CreateSandbox(t.Context(), apiv1.CreateSandbox{Template: "mini", Name: "first"}); client.Code(err) != "name_taken" {
		t.Errorf("a second sandbox of that name: %v", err)
	}
	for _, team := range []struct {
		value string
		want  int
	}{{"x", 1}, {"y", 0}} {
		list, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{Metadata: map[string]string{"team": team.value}})
		if err != nil || len(list.Items) != team.want {
			t.Errorf("team %s: %+v, %v", team.value, list, err)
		}
	}
	meta := map[string]string{"team": "z"}
	patched, err := i.client.PatchSandbox(t.Context(), "first", apiv1.PatchSandbox{Metadata: &meta})
	if err != nil || patched.Metadata["team"] != "z" {
		t.Errorf("patch: %+v, %v", patched, err)
	}
	node, err := i.client.Node(t.Context())
	if err != nil || len(node.Drivers) == 0 || !strings.Contains(strings.Join(node.Warnings, "\n"), "development authentication: not for production") {
		t.Errorf("node: %+v, %v", node, err)
	}
}

func testIdempotency(t *testing.T, i *installation) {
	in := apiv1.Exec{Argv: []string{"sh", "-c", "echo once >> count; wc -l < count"}}
	first, err := i.client.Exec(t.Context(), "first", in, client.IdempotencyKey("k1"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := i.client.Exec(t.Context(), "first", in, client.IdempotencyKey("k1"))
	if err != nil || again.ID != first.ID || again.Stdout != first.Stdout || strings.TrimSpace(again.Stdout) != "1" {
		t.Errorf("replay: %+v, %v", again, err)
	}
	in.Argv = []string{"true"}
	if _, err := i.client.Exec(t.Context(), "first", in, client.IdempotencyKey("k1")); client.Code(err) != "idempotency_conflict" {
		t.Errorf("another body: %v", err)
	}
}
