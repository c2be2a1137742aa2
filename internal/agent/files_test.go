package agent

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// files calls the raw route; query is key, value, key, value ...
func (f *fixture) files(method string, body io.Reader, query ...string) (int, []byte, *http.Response) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, rpc.BaseURL+"/files?"+queryOf(query).Encode(), body)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.do(req)
}

// queryOf is a query of key, value, key, value ...
func queryOf(pairs []string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Add(pairs[i], pairs[i+1])
	}
	return q
}

// do makes a request with the token.
func (f *fixture) do(req *http.Request) (int, []byte, *http.Response) {
	f.t.Helper()
	res, err := withToken{f.http.Transport, testToken}.RoundTrip(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.StatusCode, raw, res
}

// refused fails the test unless the route refuses with the code and its status.
func (f *fixture) refused(code sandbox.Code, method string, query ...string) {
	f.t.Helper()
	status, raw, _ := f.files(method, strings.NewReader("new"), query...)
	var p problem
	if err := json.Unmarshal(raw, &p); err != nil || p.Message == "" {
		f.t.Errorf("%s %q: %d without an error's form: %s", method, query, status, raw)
	}
	if p.Code != code || status != code.Info().Status {
		f.t.Errorf("%s %q: %d %s, want %s", method, query, status, raw, code)
	}
}

// put stores a file and checks the answer.
func (f *fixture) put(content []byte, query ...string) stored {
	f.t.Helper()
	status, raw, _ := f.files(http.MethodPut, bytes.NewReader(content), query...)
	var s stored
	if err := json.Unmarshal(raw, &s); err != nil || status != http.StatusOK {
		f.t.Fatalf("PUT %q: %d %s", query, status, raw)
	}
	sum := sha256.Sum256(content)
	if s.SizeBytes != int64(len(content)) || s.SHA256 != hex.EncodeToString(sum[:]) {
		f.t.Errorf("PUT %q answers %+v", query, s)
	}
	return s
}

func statOf(t *testing.T, p string) *syscall.Stat_t {
	t.Helper()
	st, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t)
}

// noTraces fails the test when an upload left its temporary file.
func noTraces(t *testing.T, dir string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			t.Errorf("%s is left in %s", e.Name(), dir)
		}
	}
}

func TestFileRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	big := make([]byte, 3<<20+17)
	rand.Read(big)
	for name, content := range map[string][]byte{"empty": {}, "small": []byte("a\x00\xff"), "big": big} {
		p := filepath.Join(f.dir, name)
		if s := f.put(content, "path", p); s.Path != p {
			t.Errorf("stored at %q", s.Path)
		}
		status, got, res := f.files(http.MethodGet, nil, "path", p)
		if status != 200 || !bytes.Equal(got, content) || res.ContentLength != int64(len(content)) {
			t.Errorf("%s: %d, %d bytes, length %d", name, status, len(got), res.ContentLength)
		}
		if m := statOf(t, p).Mode & 0o7777; m != newMode {
			t.Errorf("%s: mode %o", name, m)
		}
	}
	noTraces(t, f.dir)
}

func TestFilePathsAndParents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	dir := filepath.Join(f.dir, "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := f.write("file", "old")
	missing := filepath.Join(f.dir, "x/y/z")
	f.refused(sandbox.CodeNotFound, http.MethodGet, "path", missing)
	f.refused(sandbox.CodeNotFound, http.MethodPut, "path", missing)
	f.refused(sandbox.CodeNotFound, http.MethodGet, "path", file+"/below")
	f.refused(sandbox.CodeNotFound, http.MethodPut, "path", file+"/below")
	f.refused(sandbox.CodeNotFound, http.MethodPut, "path", file+"/a/b", "create_parents", "true")
	f.refused(sandbox.CodeIsDirectory, http.MethodGet, "path", dir)
	f.refused(sandbox.CodeIsDirectory, http.MethodPut, "path", dir)
	f.refused(sandbox.CodeIsDirectory, http.MethodPut, "path", dir+"/")
	f.refused(sandbox.CodeIsDirectory, http.MethodPut, "path", dir+"/..")
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet)
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", "/a\x00b")
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", "/"+strings.Repeat("a/", 3000))
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", filepath.Join(f.dir, strings.Repeat("n", 300)))
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "mode", "rwx")
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "mode", "10000")
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "create_parents", "perhaps")
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "path", file)
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "if_match", "x")
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", file, "write", "twice")
	f.refused(sandbox.CodeUnknownField, http.MethodPut, "path", file, "recursive", "true")
	f.refused(sandbox.CodeUnknownField, http.MethodGet, "path", file, "mode", "0644")
	f.refused(sandbox.CodeNotFound, http.MethodGet, "path", file, "user", "no-such-user")
	f.put([]byte("new"), "path", missing, "create_parents", "true")
	if got, err := os.ReadFile(missing); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
	noTraces(t, f.dir)
	noTraces(t, dir)
}

// TestRelativePathsBeginAtHome uses the fixture's passwd, in which the home of root is its directory.
func TestRelativePathsBeginAtHome(t *testing.T) {
	t.Parallel()
	uid := strconv.Itoa(os.Geteuid())
	f := newFixture(t, func(c *Config) {
		dir := filepath.Dir(c.Etc)
		if err := os.WriteFile(filepath.Join(c.Etc, "passwd"), []byte("me:x:"+uid+":"+uid+"::"+dir+":\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	if s := f.put([]byte("x"), "path", "sub/file", "user", "me", "create_parents", "true"); s.Path != f.dir+"/sub/file" {
		t.Errorf("stored at %q", s.Path)
	}
}

// TestFileReplaces: what is replaced keeps its mode, unless another is given; links lead to what is replaced.
func TestFileReplaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("d/file", "old")
	if err := os.Chmod(file, 0o751); err != nil {
		t.Fatal(err)
	}
	link, chain := filepath.Join(f.dir, "link"), filepath.Join(f.dir, "chain")
	dangling, loop := filepath.Join(f.dir, "dangling"), filepath.Join(f.dir, "loop")
	for l, to := range map[string]string{link: "d/file", chain: link, dangling: "d/made", loop: "loop"} {
		if err := os.Symlink(to, l); err != nil {
			t.Fatal(err)
		}
	}
	f.put([]byte("first"), "path", file)
	if m := statOf(t, file).Mode & 0o7777; m != 0o751 {
		t.Errorf("mode %o after replacing", m)
	}
	f.put([]byte("second"), "path", chain, "mode", "0600")
	if got, err := os.ReadFile(file); err != nil || string(got) != "second" || statOf(t, file).Mode&0o7777 != 0o600 {
		t.Errorf("%q, %v", got, err)
	}
	for _, l := range []string{link, chain} {
		if st, err := os.Lstat(l); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more", l)
		}
	}
	f.put([]byte("made"), "path", dangling)
	if got, err := os.ReadFile(filepath.Join(f.dir, "d/made")); err != nil || string(got) != "made" {
		t.Errorf("%q, %v", got, err)
	}
	f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", loop)
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", loop)
}

// TestSpecialFilesAreRefused: nothing hangs and nothing is opened.
func TestSpecialFilesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	fifo, socket := filepath.Join(f.dir, "fifo"), filepath.Join(f.dir, "socket")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, p := range []string{fifo, socket, "/dev/null", "/dev/zero"} {
		f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", p)
		f.refused(sandbox.CodeInvalidArgument, http.MethodPut, "path", p)
	}
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", "/proc/self/root/etc/passwd")
	f.refused(sandbox.CodeInvalidArgument, http.MethodGet, "path", "/proc/self/exe")
	if status, raw, _ := f.files(http.MethodGet, nil, "path", "/proc/version"); status != 200 || len(raw) == 0 {
		t.Errorf("/proc/version: %d, %d bytes", status, len(raw))
	}
}

// TestBodyCutOff: a client that goes away in the middle leaves the old file and nothing else.
func TestBodyCutOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("file", "old")
	r, w := io.Pipe()
	go func() {
		for range 10 {
			if _, err := w.Write(make([]byte, 100_000)); err != nil {
				return
			}
		}
		w.CloseWithError(errors.New("gone"))
	}()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, rpc.BaseURL+"/files?path="+url.QueryEscape(file), r)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := (withToken{f.http.Transport, testToken}).RoundTrip(req); err == nil {
		res.Body.Close()
		t.Errorf("a body that was cut off is answered with %d", res.StatusCode)
	}
	// The place is free again when the handler has cleaned up.
	for range maxTransfers {
		f.server.transfers <- struct{}{}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	noTraces(t, f.dir)
	for range maxTransfers {
		<-f.server.transfers
	}
}

func TestTransfersAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for range maxTransfers {
		f.server.transfers <- struct{}{}
	}
	f.refused(sandbox.CodeCapacity, http.MethodGet, "path", "/etc/passwd")
	f.refused(sandbox.CodeCapacity, http.MethodPut, "path", filepath.Join(f.dir, "x"))
}

// TestFilesAsUser: with privileges everything is done with the user's rights: the kernel decides. Without, other
// users are out of reach, and the own rights are what counts.
func TestFilesAsUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	if !privileged() {
		f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/etc/passwd", "user", "root")
		f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/etc/shadow")
		f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", "/etc/space-test")
		return
	}
	secret := f.write("secret", "root's")
	theirs := filepath.Join(f.dir, "theirs")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(theirs, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(theirs, "a/b/own")
	f.put([]byte("mine"), "path", own, "user", nobody, "create_parents", "true")
	for _, p := range []string{own, filepath.Dir(own)} {
		if st := statOf(t, p); st.Uid != 65534 || st.Gid != 65534 {
			t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
		}
	}
	if status, raw, _ := f.files(http.MethodGet, nil, "path", own, "user", nobody); status != 200 || string(raw) != "mine" {
		t.Errorf("%d %s", status, raw)
	}
	f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", secret, "user", nobody)
	f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", secret, "user", nobody)
	f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", filepath.Join(f.dir, "new"), "user", nobody)
	f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", filepath.Join(f.dir, "new/deep"), "user", nobody, "create_parents", "true")
	// What only uid 0 may do, whatever the mode bits say.
	f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/proc/self/environ", "user", nobody)
	f.refused(sandbox.CodePermissionDenied, http.MethodGet, "path", "/proc/1/environ", "user", nobody)
	f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", "/proc/sys/kernel/hostname", "user", nobody)
	if status, raw, _ := f.files(http.MethodGet, nil, "path", secret); status != 200 || string(raw) != "root's" {
		t.Errorf("the agent lost its rights: %d %s", status, raw)
	}
	noTraces(t, f.dir)
}

// TestFileOfAnotherOwner: root's file in the user's directory. Not writable: refused. Writable: it stays root's, and
// loses set-id bits.
func TestFileOfAnotherOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	file := f.write("theirs/file", "old")
	if !privileged() {
		if err := os.Chmod(file, 0o444); err != nil {
			t.Fatal(err)
		}
		f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", file)
		return
	}
	if err := os.Chown(filepath.Dir(file), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	f.refused(sandbox.CodePermissionDenied, http.MethodPut, "path", file, "user", nobody)
	if err := os.Chmod(file, 0o777|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	f.put([]byte("new"), "path", file, "user", nobody, "mode", "4755")
	if st := statOf(t, file); st.Uid != 0 || st.Gid != 0 || st.Mode&0o7777 != 0o777 {
		t.Errorf("it belongs to %d:%d, mode %o", st.Uid, st.Gid, st.Mode&0o7777)
	}
	// Root replaces a user's file: it stays the user's.
	if err := os.Chown(file, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	f.put([]byte("root's word"), "path", file)
	if st := statOf(t, file); st.Uid != 65534 || st.Gid != 65534 {
		t.Errorf("it belongs to %d:%d", st.Uid, st.Gid)
	}
}

// TestDirectoryWithoutReadPermission: the user may write into it but not list it.
func TestDirectoryWithoutReadPermission(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	drop := filepath.Join(f.dir, "drop")
	if err := os.Mkdir(drop, 0o755); err != nil {
		t.Fatal(err)
	}
	user := ""
	if privileged() {
		user = nobody
	}
	if err := os.Chmod(drop, 0o333); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(drop, 0o755) })
	f.put([]byte("x"), "path", filepath.Join(drop, "file"), "user", user)
}

// TestFileErrors maps what a disk says; the mapping is all there is between the kernel and the answer.
func TestFileErrors(t *testing.T) {
	t.Parallel()
	for errno, code := range map[unix.Errno]sandbox.Code{
		unix.ENOSPC: sandbox.CodeGuestDiskFull, unix.EDQUOT: sandbox.CodeGuestDiskFull, unix.EROFS: sandbox.CodePermissionDenied,
		unix.ENOENT: sandbox.CodeNotFound, unix.EISDIR: sandbox.CodeIsDirectory, unix.EIO: sandbox.CodeInternal,
	} {
		if got := sandbox.CodeOf(fileError("/x", &os.PathError{Op: "write", Path: "/x", Err: errno})); got != code {
			t.Errorf("%v: %s, want %s", errno, got, code)
		}
	}
}
