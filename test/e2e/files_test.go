//go:build realvm

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestFiles walks through everything the API does with files of one microVM.
func TestFiles(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	disk := 512
	i.create(apiv1.CreateSandbox{Name: "files", DiskMiB: &disk})
	t.Run("range", func(t *testing.T) { testRange(t, i) })
	t.Run("writes", func(t *testing.T) { testWrites(t, i) })
	t.Run("trees", func(t *testing.T) { testTrees(t, i) })
	t.Run("watch", func(t *testing.T) { testWatch(t, i) })
	t.Run("copy", func(t *testing.T) { testCopy(t, i) })
	t.Run("hostile archive", func(t *testing.T) { testHostileArchive(t, i) })
	t.Run("large", func(t *testing.T) { testLargeFile(t, i) })
	t.Run("full disk", func(t *testing.T) { testFullDisk(t, i) })
}

// write stores a file as the template's user.
func (i *installation) write(p, content string, opts client.FileOptions) *apiv1.WrittenFile {
	i.t.Helper()
	w, err := i.client.WriteFile(i.t.Context(), "files", p, strings.NewReader(content), opts)
	if err != nil {
		i.t.Fatalf("write %s: %v", p, err)
	}
	return w
}

func (i *installation) read(p string, opts client.FileOptions) string {
	i.t.Helper()
	f, err := i.client.ReadFile(i.t.Context(), "files", p, opts)
	if err != nil {
		i.t.Fatalf("read %s: %v", p, err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		i.t.Fatalf("read %s: %v", p, err)
	}
	return string(data)
}

func testRange(t *testing.T, i *installation) {
	i.write("digits", "0123456789", client.FileOptions{})
	if got := i.read("digits", client.FileOptions{Offset: 3, Length: 4}); got != "3456" {
		t.Errorf("bytes 3 to 6: %q", got)
	}
	key, err := os.ReadFile(filepath.Join(i.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]struct {
		status        int
		part, content string
	}{
		"bytes=0-0":  {206, "bytes 0-0/10", "0"},
		"bytes=7-":   {206, "bytes 7-9/10", "789"},
		"bytes=-2":   {206, "bytes 8-9/10", "89"},
		"bytes=8-99": {206, "bytes 8-9/10", "89"},
		"bytes=10-":  {416, "", ""},
		"lines=1-2":  {200, "", "0123456789"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", i.url+"/v1/sandboxes/files/files?path=digits", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
		req.Header.Set("Range", header)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != want.status || res.Header.Get("Content-Range") != want.part || want.content != "" && string(body) != want.content {
			t.Errorf("%s: %d %q %q, %v", header, res.StatusCode, res.Header.Get("Content-Range"), body, err)
		}
	}
}

func testWrites(t *testing.T, i *installation) {
	first := i.write("conf", "one", client.FileOptions{Mode: 0o640})
	i.sh("files", "ln -s conf link; ln conf hard; setfattr -n user.note -v kept conf 2>/dev/null; true")
	i.write("link", "two", client.FileOptions{IfMatch: first.SHA256})
	if got := i.sh("files", "cat conf hard; stat -c %a:%U conf; readlink link"); got != "twoone640:user\nconf\n" {
		t.Errorf("after an atomic write: %q", got)
	}
	if _, err := i.client.WriteFile(t.Context(), "files", "conf", strings.NewReader("x"), client.FileOptions{IfMatch: first.SHA256}); client.Code(err) != "content_mismatch" {
		t.Errorf("if_match of the old content: %v", err)
	}
	i.write("hard", "a longer three", client.FileOptions{InPlace: true})
	i.sh("files", "ln hard harder")
	i.write("hard", "3", client.FileOptions{InPlace: true})
	if got := i.sh("files", "cat harder"); got != "3" {
		t.Errorf("after a write in place: %q", got)
	}
	if _, err := i.client.WriteFile(t.Context(), "files", "/etc/passwd", strings.NewReader("x"), client.FileOptions{}); client.Code(err) != "permission_denied" {
		t.Errorf("write as the user: %v", err)
	}
	i.write("/etc/space-test", "x", client.FileOptions{User: "root"})
}

func testTrees(t *testing.T, i *installation) {
	ctx := t.Context()
	made, err := i.client.MakeDirectory(ctx, "files", "", apiv1.MakeDirectory{Path: "tree/a/b", Mode: "0750", CreateParents: true})
	if err != nil || made.Path != "/home/user/tree/a/b" || made.Type != "directory" || made.Mode != "0750" || made.Owner != "user" || made.UID != 1000 {
		t.Errorf("mkdir: %+v, %v", made, err)
	}
	if _, err := i.client.MakeDirectory(ctx, "files", "", apiv1.MakeDirectory{Path: "tree/a"}); client.Code(err) != "already_exists" {
		t.Errorf("mkdir again: %v", err)
	}
	i.sh("files", "cd tree; for n in 1 2 3 4 5; do echo $n > f$n; done; ln -s /etc/passwd out; echo deep > a/b/deep")
	var paths []string
	for page := (&apiv1.FileList{}); ; {
		page, err = i.client.ListFiles(ctx, "files", "tree", client.ListOptions{Depth: 3, Limit: 2, Cursor: page.NextCursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range page.Items {
			paths = append(paths, strings.TrimPrefix(f.Path, "/home/user/tree/")+" "+f.Type)
		}
		if page.NextCursor == "" {
			break
		}
	}
	want := []string{"a directory", "a/b directory", "a/b/deep file", "f1 file", "f2 file", "f3 file", "f4 file", "f5 file", "out symlink"}
	if d := cmp.Diff(want, paths); d != "" {
		t.Error(d)
	}
	link, err := i.client.StatFile(ctx, "files", "tree/out", client.StatOptions{})
	if err != nil || link.SymlinkTarget == nil || *link.SymlinkTarget != "/etc/passwd" {
		t.Errorf("stat of a link: %+v, %v", link, err)
	}
	moved, err := i.client.MoveFile(ctx, "files", "", apiv1.MoveFile{From: "tree/f1", To: "tree/g1"})
	if err != nil || moved.Path != "/home/user/tree/g1" || moved.SizeBytes != 2 {
		t.Errorf("move: %+v, %v", moved, err)
	}
	if _, err := i.client.MoveFile(ctx, "files", "", apiv1.MoveFile{From: "tree/g1", To: "tree/f2"}); client.Code(err) != "already_exists" {
		t.Errorf("move onto a file: %v", err)
	}
	if err := i.client.RemoveFile(ctx, "files", "tree", client.RemoveOptions{}); client.Code(err) != "directory_not_empty" {
		t.Errorf("remove a full directory: %v", err)
	}
	if err := i.client.RemoveFile(ctx, "files", "tree", client.RemoveOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	for code, opts := range map[string]client.RemoveOptions{"not_found": {}, "": {MissingOK: true}} {
		if err := i.client.RemoveFile(ctx, "files", "tree", opts); client.Code(err) != code {
			t.Errorf("remove what is gone: %v, want %q", err, code)
		}
	}
	if got := i.sh("files", "test -f /etc/passwd && echo there"); got != "there\n" {
		t.Error("removing a tree followed a link")
	}
}

func testWatch(t *testing.T, i *installation) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	i.sh("files", "mkdir watched")
	w, err := i.client.WatchFiles(ctx, "files", "watched", client.WatchOptions{Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	i.sh("files", "mkdir watched/sub && echo hello > watched/sub/file && rm -r watched")
	seen := map[string]bool{}
	for {
		e, err := w.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v; seen %v", err, seen)
		}
		seen[e.Type+" "+strings.TrimPrefix(e.Path, "/home/user/")] = true
	}
	for _, want := range []string{"create watched/sub", "create watched/sub/file", "remove watched/sub", "remove watched"} {
		if !seen[want] {
			t.Errorf("no %q in %v", want, seen)
		}
	}
}

// testCopy takes a directory into the guest and out again by the command line, with modes, times and links.
func testCopy(t *testing.T, i *installation) {
	local := t.TempDir()
	src := filepath.Join(local, "src")
	all := make([]byte, 256)
	for b := range all {
		all[b] = byte(b)
	}
	for name, mode := range map[string]os.FileMode{"run.sh": 0o755, "sub/secret": 0o600, "sub/deep/read": 0o444, "name with \xff bytes\n": 0o640} {
		p := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, append(all, name...), mode); err != nil {
			t.Fatal(err)
		}
		old := time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": "sub/secret", "sub/up": "../run.sh", "dangling": "/no/where"} {
		if err := os.Symlink(to, filepath.Join(src, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(src, "sub/deep"), 0o555); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"cp", src, "files:"}, {"cp", "files:src", filepath.Join(local, "back")}} {
		if out, err := i.space(t.Context(), args...); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	if d := cmp.Diff(treeOf(t, src), treeOf(t, filepath.Join(local, "back"))); d != "" {
		t.Error(d)
	}
	if got := i.sh("files", "find src ! -user user | wc -l"); strings.TrimSpace(got) != "0" {
		t.Errorf("%s entries are not the user's", got)
	}
}

// treeOf describes everything in a directory.
func treeOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		line := info.Mode().String()
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " " + to
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x %s", sha256.Sum256(data), info.ModTime().UTC())
		}
		all[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func testHostileArchive(t *testing.T, i *installation) {
	for name, entries := range map[string][]*tar.Header{
		"dots":     {{Name: "../escaped", Typeflag: tar.TypeReg}},
		"absolute": {{Name: "/home/user/escaped", Typeflag: tar.TypeReg}},
		"link":     {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/home/user"}, {Name: "l/escaped", Typeflag: tar.TypeReg}},
		"hardlink": {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../digits"}},
		"device":   {{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
	} {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, h := range entries {
			h.Mode = 0o644
			if err := tw.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := i.client.WriteArchive(t.Context(), "files", "jail/in", &buf, client.FileOptions{CreateParents: true})
		if client.Code(err) != "invalid_argument" || !strings.Contains(err.Error(), "entries with") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := i.sh("files", "ls escaped jail/escaped jail/in/h jail/in/d 2>/dev/null; true"); got != "" {
		t.Errorf("outside or made: %q", got)
	}
}

// testLargeFile sends 200 MiB through and back: the parts on the way keep nothing of it.
func testLargeFile(t *testing.T, i *installation) {
	const size = 200 << 20
	before := i.memory()
	most := int64(0)
	watch := func() { most = max(most, i.memory()-before) }
	sum := sha256.New()
	src := &sampled{r: io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{7}), size), sum), every: watch}
	w, err := i.client.WriteFile(t.Context(), "files", "large", src, client.FileOptions{Size: size})
	if err != nil || w.SHA256 != hex.EncodeToString(sum.Sum(nil)) || w.SizeBytes != size {
		t.Fatalf("write: %+v, %v", w, err)
	}
	f, err := i.client.ReadFile(t.Context(), "files", "large", client.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	back := sha256.New()
	n, err := io.Copy(back, &sampled{r: f, every: watch})
	if err != nil || n != size || !bytes.Equal(back.Sum(nil), sum.Sum(nil)) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	t.Logf("control, node and gateway grew by %d MiB at most", most>>20)
	if most >= 64<<20 {
		t.Errorf("control, node and gateway grew by %d MiB", most>>20)
	}
	if err := i.client.RemoveFile(t.Context(), "files", "large", client.RemoveOptions{}); err != nil {
		t.Error(err)
	}
}

// sampled calls every for each 16 MiB that are read.
type sampled struct {
	r     io.Reader
	n     int
	every func()
}

func (s *sampled) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if before := s.n >> 24; (s.n+n)>>24 > before {
		s.every()
	}
	s.n += n
	return n, err
}

// memory is what the parts have resident, in bytes.
func (i *installation) memory() int64 {
	i.t.Helper()
	total := int64(0)
	for _, part := range []string{"control", "node", "gateway"} {
		pid, ok := i.partPID(part)
		if !ok {
			i.t.Fatalf("no process %s", part)
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			i.t.Fatal(err)
		}
		pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
		if err != nil {
			i.t.Fatal(err)
		}
		total += pages * int64(os.Getpagesize())
	}
	return total
}

// testFullDisk: the answer says so and how far it came, and no half file is left.
func testFullDisk(t *testing.T, i *installation) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, name := range []string{"small", "big"} {
		size := int64(100)
		if name == "big" {
			size = 64 << 20
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(tw, rand.NewChaCha8([32]byte{8}), size); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	i.write("inplace", "old content", client.FileOptions{})
	i.sh("files", "mkdir full; dd if=/dev/zero of=fill bs=1M 2>/dev/null; truncate -s -8M fill 2>/dev/null || dd if=/dev/null of=fill bs=1M seek=16 2>/dev/null; true")
	_, err := i.client.WriteArchive(t.Context(), "files", "full", &buf, client.FileOptions{})
	if client.Code(err) != "guest_disk_full" || !strings.Contains(err.Error(), "1 entries with 100 bytes") {
		t.Errorf("archive onto a full disk: %v", err)
	}
	if got := i.sh("files", "ls -A full"); got != "small\n" {
		t.Errorf("left: %q", got)
	}
	big := bytes.Repeat([]byte("x"), 64<<20)
	_, err = i.client.WriteFile(t.Context(), "files", "inplace", bytes.NewReader(big), client.FileOptions{InPlace: true, Size: int64(len(big))})
	if client.Code(err) != "guest_disk_full" || i.sh("files", "cat inplace") != "old content" {
		t.Errorf("in place onto a full disk: %v", err)
	}
	i.sh("files", "rm fill")
}
