package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// act calls a route below /files and decodes its answer into out, which may be nil.
func (f *fixture) act(method, action string, out any, query ...string) {
	f.t.Helper()
	status, raw := f.actStatus(method, action, query...)
	if status != http.StatusOK && status != http.StatusNoContent {
		f.t.Fatalf("%s %s %q: %d %s", method, action, query, status, raw)
	}
	if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			f.t.Fatalf("%s %s: %v in %s", method, action, err, raw)
		}
	}
}

func (f *fixture) actStatus(method, action string, query ...string) (int, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, rpc.BaseURL+"/files"+action+"?"+queryOf(query).Encode(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	status, raw, _ := f.do(req)
	return status, raw
}

// actRefused wants a code and its status.
func (f *fixture) actRefused(code sandbox.Code, method, action string, query ...string) {
	f.t.Helper()
	status, raw := f.actStatus(method, action, query...)
	var p problem
	if err := json.Unmarshal(raw, &p); err != nil || p.Code != code || status != code.Info().Status {
		f.t.Errorf("%s %s %q: %d %s, want %s", method, action, query, status, raw, code)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("dir/file", "12345")
	link := filepath.Join(f.dir, "link")
	if err := errors.Join(os.Symlink("dir/file", link), os.Chmod(file, 0o4751), unix.Chmod(file, 0o4751)); err != nil {
		t.Fatal(err)
	}
	attributes := unix.Setxattr(file, "user.text", []byte("ä b"), 0) == nil && unix.Setxattr(file, "user.raw", []byte{0xff, 0}, 0) == nil
	var info apiv1.FileInfo
	f.act("GET", "/stat", &info, "path", file)
	if info.Path != file || info.Type != "file" || info.SizeBytes != 5 || info.Mode != "4751" || int(info.UID) != os.Getuid() || info.SymlinkTarget != nil || info.ModifiedAt.IsZero() {
		t.Errorf("%+v", info)
	}
	if attributes && (info.XAttrs["user.text"] != "ä b" || info.XAttrsB64["user.raw"] != "/wA=") {
		t.Errorf("attributes %v, %v", info.XAttrs, info.XAttrsB64)
	}
	if os.Getuid() == 0 && info.Owner != "root" {
		t.Errorf("owner %q", info.Owner)
	}
	f.act("GET", "/stat", &info, "path", link)
	if info.Type != "symlink" || info.SymlinkTarget == nil || *info.SymlinkTarget != "dir/file" {
		t.Errorf("%+v", info)
	}
	info = apiv1.FileInfo{}
	f.act("GET", "/stat", &info, "path", link, "follow", "true")
	if info.Type != "file" || info.SizeBytes != 5 {
		t.Errorf("%+v", info)
	}
	f.act("GET", "/stat", &info, "path", "/dev/null")
	if info.Type != "char_device" {
		t.Errorf("%+v", info)
	}
	f.actRefused(sandbox.CodeNotFound, "GET", "/stat", "path", file+"x")
	f.actRefused(sandbox.CodeNotFound, "GET", "/stat", "path", file+"/x")
	f.actRefused(sandbox.CodeInvalidArgument, "GET", "/stat", "path", file, "follow", "maybe")
}

// listAll reads all pages.
func (f *fixture) listAll(limit int, between func(), query ...string) (paths []string) {
	f.t.Helper()
	cursor := ""
	for {
		var page apiv1.FileList
		f.act("GET", "/list", &page, append([]string{"limit", fmt.Sprint(limit), "cursor", cursor}, query...)...)
		if len(page.Items) > limit {
			f.t.Fatalf("%d entries", len(page.Items))
		}
		for _, i := range page.Items {
			paths = append(paths, strings.TrimPrefix(i.Path, f.dir+"/"))
		}
		if cursor = page.NextCursor; cursor == "" {
			return paths
		}
		if len(page.Items) == 0 {
			f.t.Fatal("an empty page that is not the last")
		}
		between()
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, name := range []string{"l/a/1", "l/a/2/deep/x", "l/a-b", "l/a0", "l/b/3", "l/z"} {
		f.write(name, "")
	}
	if err := os.Symlink("/", filepath.Join(f.dir, "l/root")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(f.dir, "l")
	whole := []string{"l/a", "l/a/1", "l/a/2", "l/a/2/deep", "l/a/2/deep/x", "l/a-b", "l/a0", "l/b", "l/b/3", "l/root", "l/z"}
	flat := []string{"l/a", "l/a-b", "l/a0", "l/b", "l/root", "l/z"}
	for limit := 1; limit <= 12; limit++ {
		if d := cmp.Diff(whole, f.listAll(limit, func() {}, "path", dir, "depth", "9")); d != "" {
			t.Errorf("limit %d: %s", limit, d)
		}
		if d := cmp.Diff(flat, f.listAll(limit, func() {}, "path", dir+"/")); d != "" {
			t.Errorf("limit %d: %s", limit, d)
		}
	}
	f.actRefused(sandbox.CodeNotDirectory, "GET", "/list", "path", dir+"/z")
	f.actRefused(sandbox.CodeNotFound, "GET", "/list", "path", dir+"/none")
	for _, bad := range [][]string{{"depth", "0"}, {"depth", "65"}, {"limit", "1001"}, {"limit", "x"}, {"cursor", "%%"}, {"cursor", "Li4"}, {"cursor", "YS8vYg"}} {
		f.actRefused(sandbox.CodeInvalidArgument, "GET", "/list", append(bad, "path", dir)...)
	}
}

// TestListOfAHugeDirectory: every name once, also when others come and go between the pages.
func TestListOfAHugeDirectory(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	dir := filepath.Join(f.dir, "huge")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var want []string
	for n := range 5000 {
		name := fmt.Sprintf("keep-%05d", n)
		want = append(want, "huge/"+name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	got := f.listAll(700, func() {
		n++
		// Behind the cursor and before it: one that was there, and a new one.
		err := errors.Join(os.WriteFile(filepath.Join(dir, fmt.Sprintf("a-%d", n)), nil, 0o644), os.Remove(filepath.Join(dir, fmt.Sprintf("keep-%05d", n*700-1))))
		if err != nil {
			t.Fatal(err)
		}
	}, "path", dir)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMakeMoveRemove(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	at := func(p string) string { return filepath.Join(f.dir, p) }
	var info apiv1.FileInfo
	f.act("POST", "/mkdir", &info, "path", at("m"), "mode", "0777")
	if info.Type != "directory" || info.Mode != "0777" || info.Path != at("m") {
		t.Errorf("%+v", info)
	}
	file := f.write("m/file", "x")
	f.actRefused(sandbox.CodeAlreadyExists, "POST", "/mkdir", "path", at("m"))
	f.actRefused(sandbox.CodeAlreadyExists, "POST", "/mkdir", "path", file, "create_parents", "true")
	f.actRefused(sandbox.CodeNotFound, "POST", "/mkdir", "path", at("no/d"))
	f.act("POST", "/mkdir", &info, "path", at("no/d/e/"), "create_parents", "true")
	f.act("POST", "/mkdir", &info, "path", at("no/d/e"), "create_parents", "true")
	for _, p := range []string{"/", at("m") + "/..", at("m") + "/."} {
		f.actRefused(sandbox.CodeInvalidArgument, "POST", "/mkdir", "path", p)
		f.actRefused(sandbox.CodeInvalidArgument, "DELETE", "", "path", p, "recursive", "true")
		f.actRefused(sandbox.CodeInvalidArgument, "POST", "/move", "path", p, "to", at("q"))
	}
	f.act("POST", "/move", &info, "path", file, "to", at("m/moved"))
	if info.Path != at("m/moved") || info.SizeBytes != 1 {
		t.Errorf("%+v", info)
	}
	other := f.write("m/other", "other")
	f.actRefused(sandbox.CodeAlreadyExists, "POST", "/move", "path", at("m/moved"), "to", other)
	f.act("POST", "/move", nil, "path", at("m/moved"), "to", other, "overwrite", "true")
	f.actRefused(sandbox.CodeNotFound, "POST", "/move", "path", at("m/moved"), "to", other)
	f.actRefused(sandbox.CodeNotDirectory, "POST", "/move", "path", at("no"), "to", other, "overwrite", "true")
	f.actRefused(sandbox.CodeNotEmpty, "POST", "/move", "path", at("no"), "to", at("m"), "overwrite", "true")
	f.actRefused(sandbox.CodeInvalidArgument, "POST", "/move", "path", at("no"), "to", at("no/d/x"))
	f.actRefused(sandbox.CodeInvalidArgument, "POST", "/move", "path", other)

	if err := os.Symlink(at("m"), at("no/link")); err != nil {
		t.Fatal(err)
	}
	f.actRefused(sandbox.CodeNotEmpty, "DELETE", "", "path", at("no"))
	f.actRefused(sandbox.CodeNotFound, "DELETE", "", "path", at("nothing"))
	f.actRefused(sandbox.CodeNotFound, "DELETE", "", "path", at("nothing/at/all"))
	f.act("DELETE", "", nil, "path", at("nothing/at/all"), "missing_ok", "true")
	f.act("DELETE", "", nil, "path", at("no/d/e"))
	f.act("DELETE", "", nil, "path", at("no"), "recursive", "true")
	if _, err := os.Lstat(at("no")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "x" {
		t.Errorf("a link was followed: %q, %v", got, err)
	}
}

// TestTreesAsUser: the kernel decides, with the user's rights.
func TestTreesAsUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	closed := f.write("closed/file", "x")
	if err := os.Chmod(filepath.Dir(closed), 0o700); err != nil {
		t.Fatal(err)
	}
	if !privileged() {
		f.actRefused(sandbox.CodePermissionDenied, "GET", "/stat", "path", "/root/x", "user", "root")
		f.actRefused(sandbox.CodePermissionDenied, "POST", "/mkdir", "path", "/space-test")
		f.actRefused(sandbox.CodePermissionDenied, "DELETE", "", "path", "/etc/passwd")
		return
	}
	for _, q := range [][]string{{"GET", "/stat", "path", closed}, {"GET", "/list", "path", filepath.Dir(closed)}, {"DELETE", "", "path", closed},
		{"POST", "/mkdir", "path", f.dir + "/new"}, {"POST", "/move", "path", closed, "to", f.dir + "/x"}, {"GET", "/archive", "path", f.dir},
		{"PUT", "/archive", "path", f.dir + "/new", "create_parents", "true"}, {"GET", "/watch", "path", filepath.Dir(closed)},
		{"DELETE", "", "path", filepath.Dir(closed), "recursive", "true"}} {
		f.actRefused(sandbox.CodePermissionDenied, q[0], q[1], append(q[2:], "user", nobody)...)
	}
	theirs := filepath.Join(f.dir, "theirs")
	if err := errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	var info apiv1.FileInfo
	f.act("POST", "/mkdir", &info, "path", theirs+"/own", "user", nobody)
	if info.UID != 65534 || info.GID != 65534 || info.Owner != "worker" {
		t.Errorf("%+v", info)
	}
	if got := f.listAll(1, func() {}, "path", f.dir, "depth", "3", "user", nobody); !strings.Contains(strings.Join(got, " "), "theirs/own") || strings.Contains(strings.Join(got, " "), "closed/file") {
		t.Errorf("as the user: %v", got)
	}
}

// TestKeepsWhatItReplaces: attributes, owner and mode stay, whoever writes.
func TestKeepsWhatItReplaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("file", "old")
	if err := unix.Setxattr(file, "user.note", []byte("kept"), 0); err != nil {
		t.Fatalf("this test needs a file system with attributes: %v", err)
	}
	users := []string{""}
	if privileged() {
		if err := errors.Join(os.Chown(f.dir, 65534, 65534), os.Chmod(file, 0o622)); err != nil {
			t.Fatal(err)
		}
		users = append(users, nobody) // may write the file, but not read it
		if err := os.Chmod(file, 0o602); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range users {
		before := statOf(t, file)
		f.put([]byte("new"), "path", file, "user", user)
		after, value := statOf(t, file), make([]byte, 100)
		n, err := unix.Getxattr(file, "user.note", value)
		if err != nil || string(value[:n]) != "kept" || after.Uid != before.Uid || after.Mode != before.Mode || after.Ino == before.Ino {
			t.Errorf("user %q: %v, attribute %q, %+v", user, err, value[:max(n, 0)], after)
		}
	}
}

func TestInPlace(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("file", "a long old content")
	second := filepath.Join(f.dir, "second")
	if err := errors.Join(os.Link(file, second), os.Symlink("file", filepath.Join(f.dir, "link"))); err != nil {
		t.Fatal(err)
	}
	before := statOf(t, file)
	f.put([]byte("new"), "path", filepath.Join(f.dir, "link"), "write", "in_place")
	if got, err := os.ReadFile(second); err != nil || string(got) != "new" || statOf(t, file).Ino != before.Ino {
		t.Errorf("%q, %v", got, err)
	}
	made := filepath.Join(f.dir, "made")
	f.put([]byte("x"), "path", made, "write", "in_place", "mode", "0600")
	if statOf(t, made).Mode&0o7777 != 0o600 {
		t.Errorf("mode %o", statOf(t, made).Mode)
	}
	f.refused(sandbox.CodeIsDirectory, http.MethodPut, "path", f.dir, "write", "in_place")
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := filepath.Join(f.dir, "file")
	first := f.put([]byte("one"), "path", file)
	for _, write := range []string{"atomic", "in_place"} {
		f.refused(sandbox.CodeContentMismatch, http.MethodPut, "path", file, "if_match", strings.Repeat("0", 64), "write", write)
		f.refused(sandbox.CodeContentMismatch, http.MethodPut, "path", file+"-none", "if_match", first.SHA256, "write", write)
		f.put([]byte("one"), "path", file, "if_match", strings.ToUpper(first.SHA256), "write", write)
	}
	// Of several at once exactly one wins.
	won := make(chan bool, 8)
	for n := range cap(won) {
		go func() {
			status, _, _ := f.files(http.MethodPut, strings.NewReader(fmt.Sprint("writer ", n)), "path", file, "if_match", first.SHA256)
			won <- status == http.StatusOK
		}()
	}
	wins := 0
	for range cap(won) {
		if <-won {
			wins++
		}
	}
	if wins != 1 {
		t.Errorf("%d of %d won", wins, cap(won))
	}
	noTraces(t, f.dir)
}

// TestInPlaceOnAFullDisk: room is looked for before the old content is touched; a new file that does not fit is gone.
func TestInPlaceOnAFullDisk(t *testing.T) {
	t.Parallel()
	if !privileged() {
		if got := fileError("/x", syscall.ENOSPC); sandbox.CodeOf(got) != sandbox.CodeGuestDiskFull {
			t.Errorf("got %v", got)
		}
		return
	}
	f := newFixture(t, nil)
	dir := f.smallDisk("256k")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{file, filepath.Join(dir, "new")} {
		status, raw, _ := f.files("PUT", strings.NewReader(strings.Repeat("x", 1<<20)), "path", p, "write", "in_place")
		if status != 507 {
			t.Errorf("%d %s", status, raw)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}
