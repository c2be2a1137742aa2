package agent

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
)

// tarOf makes an archive; a header's Linkname is the content of a regular file.
func tarOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		c := *h
		content := ""
		if c.Typeflag == tar.TypeReg {
			content, c.Linkname = c.Linkname, ""
			c.Size = int64(len(content))
		}
		if c.Mode == 0 && c.Typeflag != tar.TypeXGlobalHeader {
			c.Mode = 0o644
		}
		if err := tw.WriteHeader(&c); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func file(name, content string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: content}
}

func symlink(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

// unpack sends an archive.
func (f *fixture) unpack(body io.Reader, query ...string) (int, []byte) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPut, rpc.BaseURL+"/files/archive?"+queryOf(query).Encode(), body)
	if err != nil {
		f.t.Fatal(err)
	}
	status, raw, _ := f.do(req)
	return status, raw
}

func TestArchiveRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	src := filepath.Join(f.dir, "src")
	for name, mode := range map[string]os.FileMode{"run": 0o755, "d/secret": 0o600, "d/closed/read": 0o444, strings.Repeat("n", 200) + "\xff": 0o640} {
		if err := os.Chmod(f.write("src/"+name, strings.Repeat(name, 1000)), mode); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	err := errors.Join(os.Symlink("/etc/passwd", src+"/out"), os.Link(src+"/run", src+"/d/again"), os.Chmod(src+"/d/closed", 0o555),
		os.Chtimes(src+"/run", old, old), unix.Mkfifo(src+"/fifo", 0o644), unix.Setxattr(src+"/run", "user.note", []byte("x\x00y"), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(src+"/d/closed", 0o755); os.Chmod(f.dir+"/to/copy/d/closed", 0o755) })
	status, archive := f.actStatus("GET", "/archive", "path", src)
	if status != 200 {
		t.Fatalf("%d %s", status, archive)
	}
	status, raw := f.unpack(bytes.NewReader(archive), "path", f.dir+"/to/copy", "create_parents", "true")
	var done apiv1.UnpackedArchive
	if err := json.Unmarshal(raw, &done); err != nil || status != 200 || done.Path != f.dir+"/to/copy" || done.Entries != 9 {
		t.Fatalf("%d %s", status, raw)
	}
	for _, name := range []string{"run", "d/secret", "d/closed/read", "d/closed", "d/again", strings.Repeat("n", 200) + "\xff"} {
		a, b := statOf(t, src+"/"+name), statOf(t, f.dir+"/to/copy/"+name)
		if a.Mode != b.Mode || a.Mtim.Sec != b.Mtim.Sec || a.Nlink != b.Nlink || a.Mode&unix.S_IFMT == unix.S_IFREG && a.Size != b.Size {
			t.Errorf("%s: %+v, was %+v", name, b, a)
		}
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(f.dir+"/to/copy/d/again", "user.note", value); err != nil || string(value[:n]) != "x\x00y" {
		t.Errorf("attribute: %v", err)
	}
	if to, err := os.Readlink(f.dir + "/to/copy/out"); err != nil || to != "/etc/passwd" {
		t.Errorf("link: %q, %v", to, err)
	}
	if _, err := os.Lstat(f.dir + "/to/copy/fifo"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("fifo: %v", err)
	}
	noTraces(t, f.dir+"/to/copy")
	// One file makes an archive of one entry.
	if _, one := f.actStatus("GET", "/archive", "path", src+"/run"); !bytes.HasPrefix(one, []byte("run\x00")) && !bytes.Contains(one, []byte("run")) {
		t.Error("the archive of a file does not have its name")
	}
	f.actRefused(sandbox.CodeNotFound, "GET", "/archive", "path", src+"/none")
	f.actRefused(sandbox.CodeInvalidArgument, "GET", "/archive", "path", src+"/fifo")
	f.actRefused(sandbox.CodeInvalidArgument, "GET", "/archive", "path", "/dev/null")
}

// TestHostileArchives: each is refused at its bad entry, says how far it came, and touches nothing outside.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	users := []string{""}
	if privileged() {
		users = append(users, nobody)
	}
	dev := func(flag byte) *tar.Header { return &tar.Header{Typeflag: flag, Name: "bad", Devmajor: 1, Devminor: 3} }
	hard := func(to string) *tar.Header { return &tar.Header{Typeflag: tar.TypeLink, Name: "bad", Linkname: to} }
	for name, headers := range map[string][]*tar.Header{
		"dots":               {file("../bad", "")},
		"dots inside":        {file("a/../../bad", "")},
		"dots that stay":     {file("a/../bad", "")},
		"absolute":           {file("/tmp/bad", "")},
		"link up":            {symlink("l", ".."), file("l/bad", "")},
		"link absolute":      {symlink("l", "/"), file("l/tmp/bad", "")},
		"link to outside":    {symlink("l", "../outside"), file("l/bad", "")},
		"link chain":         {symlink("a", ".."), symlink("b", "a"), file("b/bad", "")},
		"link deep":          {symlink("d/e/l", "../../.."), file("d/e/l/bad", "")},
		"link loop":          {symlink("l", "l"), file("l/bad", "")},
		"link made a parent": {symlink("l", "../outside/none"), file("l/bad/x", "")},
		"magic link":         {symlink("l", "/proc/self/root"), file("l/tmp/bad", "")},
		"directory over":     {symlink("l", "../outside"), {Typeflag: tar.TypeDir, Name: "l/bad/"}},
		"hard link up":       {hard("../outside/secret")},
		"hard link absolute": {hard("/etc/passwd")},
		"hard through link":  {symlink("l", "../outside"), hard("l/secret")},
		"hard to a link":     {symlink("l", "../outside/secret"), hard("l")},
		"hard to nothing":    {hard("none")},
		"hard to root":       {hard(".")},
		"character device":   {dev(tar.TypeChar)},
		"block device":       {dev(tar.TypeBlock)},
		"fifo":               {dev(tar.TypeFifo)},
		"file as root":       {file(".", "x")},
		"below a file":       {file("f", ""), file("f/bad", "")},
		"empty link":         {symlink("bad", "")},
		"GNU sparse":         {dev(tar.TypeGNUSparse)},
	} {
		for _, user := range users {
			t.Run(name+" "+user, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, nil)
				secret := f.write("outside/secret", "secret")
				in := filepath.Join(f.dir, "in")
				if err := os.Mkdir(in, 0o777); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(os.Chmod(in, 0o777), os.Chmod(filepath.Dir(secret), 0o777), os.Chmod(secret, 0o666)); err != nil {
					t.Fatal(err)
				}
				archive := tarOf(t, append([]*tar.Header{file("good", "good")}, headers...)...)
				status, raw := f.unpack(bytes.NewReader(archive), "path", in, "user", user)
				if status < 400 || status >= 500 || !strings.Contains(string(raw), "bytes were unpacked before") {
					t.Errorf("%d %s", status, raw)
				}
				if got, err := os.ReadFile(in + "/good"); err != nil || string(got) != "good" {
					t.Errorf("what came before: %q, %v", got, err)
				}
				outside, err := os.ReadDir(filepath.Dir(secret))
				if err != nil || len(outside) != 1 || statOf(t, secret).Nlink != 1 {
					t.Errorf("outside: %v, %v", outside, err)
				}
				for _, p := range []string{f.dir + "/bad", "/tmp/bad", in + "/bad"} {
					if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s: %v", p, err)
					}
				}
				noTraces(t, in)
			})
		}
	}
}

// TestUnpackOntoLinks: links that are there or come along are replaced, not written through; those that stay inside may
// be on the way.
func TestUnpackOntoLinks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	victim := f.write("victim", "victim")
	in := filepath.Join(f.dir, "in")
	if err := errors.Join(os.MkdirAll(in+"/real", 0o755), os.Symlink(victim, in+"/planted"), os.Symlink("real", in+"/alias")); err != nil {
		t.Fatal(err)
	}
	archive := tarOf(t, file("planted", "1"), symlink("own", victim), file("own", "2"), file("alias/x", "3"), symlink("planted", "new"),
		&tar.Header{Typeflag: tar.TypeLink, Name: "same", Linkname: "own"}, &tar.Header{Typeflag: tar.TypeLink, Name: "same", Linkname: "own"},
		&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755})
	status, raw := f.unpack(bytes.NewReader(archive), "path", in)
	if status != 200 || !strings.Contains(string(raw), `"entries":8`) {
		t.Fatalf("%d %s", status, raw)
	}
	for p, want := range map[string]string{victim: "victim", in + "/own": "2", in + "/real/x": "3", in + "/same": "2"} {
		if got, err := os.ReadFile(p); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
	if m := statOf(t, in+"/suid").Mode & 0o7777; m != 0o755 {
		t.Errorf("set-id bits: %o", m)
	}
	noTraces(t, in)
}

// TestBrokenArchives: what is no archive, or not a whole one, is never taken for one.
func TestBrokenArchives(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	whole := tarOf(t, file("a", strings.Repeat("a", 3000)), file("b", "b"))
	cut := func(n int) io.Reader { return bytes.NewReader(whole[:n]) }
	for name, body := range map[string]io.Reader{
		"empty": strings.NewReader(""), "text": strings.NewReader(strings.Repeat("no archive ", 1000)), "in a file": cut(1000),
		"between entries": cut(512 + 3072), "in a header": cut(512 + 3072 + 100), "before the end": cut(len(whole) - 1024),
	} {
		dir := filepath.Join(f.dir, name)
		status, raw := f.unpack(body, "path", dir, "create_parents", "true")
		if status != 400 || !strings.Contains(string(raw), "entries with") {
			t.Errorf("%s: %d %s", name, status, raw)
		}
		noTraces(t, dir)
		if got, err := os.ReadFile(dir + "/a"); err == nil && len(got) != 3000 {
			t.Errorf("%s: half a file", name)
		}
	}
	if status, raw := f.unpack(bytes.NewReader(append(whole, make([]byte, 100_000)...)), "path", f.dir+"/padded", "create_parents", "true"); status != 200 {
		t.Errorf("padded: %d %s", status, raw)
	}
	notDir := f.write("file", "")
	for code, p := range map[sandbox.Code]string{sandbox.CodeNotFound: f.dir + "/none", sandbox.CodeNotDirectory: notDir} {
		if status, raw := f.unpack(bytes.NewReader(whole), "path", p); status != code.Info().Status || !strings.Contains(string(raw), string(code)) {
			t.Errorf("%s: %d %s", p, status, raw)
		}
	}
	// A body that breaks says so.
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(whole[:2000])
		w.CloseWithError(errors.New("gone"))
	}()
	u := &unpacker{ctx: t.Context(), body: &tarBody{bodyReader: bodyReader{r: r}}, buf: make([]byte, copyBuffer), made: map[string]ending{}}
	var err error
	if u.root, err = openAt(unix.AT_FDCWD, publicDir(t), openDir); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(u.root)
	if err := u.said("/x", u.run()); sandbox.CodeOf(err) != sandbox.CodeInvalidArgument || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("%v", err)
	}
}

// TestArchiveLimits: numbers that would take too much are refused.
func TestArchiveLimits(t *testing.T) {
	t.Parallel()
	u := &unpacker{ctx: t.Context(), entries: maxArchiveEntries, made: map[string]ending{}}
	u.body = &tarBody{bodyReader: bodyReader{r: bytes.NewReader(tarOf(t, file("a", "")))}}
	if err := u.entriesOf(tar.NewReader(u.body)); !errors.Is(err, errTooMany) {
		t.Errorf("entries: %v", err)
	}
	u.madeNames = maxMadeNames
	if err := u.end("one more", ending{}); !errors.Is(err, errTooMany) {
		t.Errorf("directories: %v", err)
	}
	f := newFixture(t, nil)
	if err := os.MkdirAll(filepath.Join(f.dir, "deep", strings.Repeat("d/", maxArchiveDepth+1)), 0o755); err != nil {
		t.Fatal(err)
	}
	f.actRefused(sandbox.CodeInvalidArgument, "GET", "/archive", "path", f.dir+"/deep")
}

// TestArchiveOnAFullDisk: 507, what was unpacked is said and stays, the half file is gone.
func TestArchiveOnAFullDisk(t *testing.T) {
	t.Parallel()
	u := &unpacker{at: "big", entries: 3, size: 7}
	err := u.said("/x", unix.ENOSPC)
	if sandbox.CodeOf(err) != sandbox.CodeGuestDiskFull || !strings.Contains(err.Error(), "3 entries with 7 bytes") || !strings.Contains(err.Error(), "big") {
		t.Errorf("%v", err)
	}
	if !privileged() {
		return
	}
	f := newFixture(t, nil)
	dir := f.smallDisk("256k")
	status, raw := f.unpack(bytes.NewReader(tarOf(t, file("small", "12345"), file("big", strings.Repeat("x", 1<<20)))), "path", dir)
	if status != 507 || !strings.Contains(string(raw), "1 entries with 5 bytes") {
		t.Errorf("%d %s", status, raw)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 || list[0].Name() != "small" {
		t.Errorf("%v, %v", list, err)
	}
}

// TestArchiveBelongsToTheUser whatever it says itself.
func TestArchiveBelongsToTheUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	user, uid := "", uint32(os.Geteuid())
	if privileged() {
		user, uid = nobody, 65534
	}
	in := filepath.Join(f.dir, "in")
	if err := errors.Join(os.Mkdir(in, 0o777), os.Chmod(in, 0o777)); err != nil {
		t.Fatal(err)
	}
	h := file("d/file", "x")
	h.Uid, h.Uname = 4242, "root"
	if status, raw := f.unpack(bytes.NewReader(tarOf(t, h)), "path", in, "user", user); status != 200 {
		t.Fatalf("%d %s", status, raw)
	}
	for _, p := range []string{"/d", "/d/file"} {
		if st := statOf(t, in+p); st.Uid != uid {
			t.Errorf("%s belongs to %d", p, st.Uid)
		}
	}
}

// FuzzUnpack: whatever the bytes are, nothing appears outside.
func FuzzUnpack(f *testing.F) {
	seed := func(headers ...*tar.Header) {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, h := range headers {
			if err := tw.WriteHeader(h); err != nil {
				f.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes())
	}
	seed(&tar.Header{Typeflag: tar.TypeReg, Name: "a/b"})
	seed(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."}, &tar.Header{Typeflag: tar.TypeReg, Name: "l/x"})
	seed(&tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, &tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../y"})
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		in := filepath.Join(parent, "in")
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := openAt(unix.AT_FDCWD, in, openDir)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(root)
		u := &unpacker{ctx: t.Context(), body: &tarBody{bodyReader: bodyReader{r: bytes.NewReader(data)}}, buf: make([]byte, 4096), root: root, made: map[string]ending{}}
		// Without the sync, which would take all the time.
		err = errors.Join(u.entriesOf(tar.NewReader(u.body)), u.finish())
		if err != nil && sandbox.CodeOf(u.said(in, err)) == "" {
			t.Errorf("no error of the house: %v", err)
		}
		list, err := os.ReadDir(parent)
		if err != nil || len(list) != 1 {
			t.Errorf("outside: %v, %v", list, err)
		}
	})
}
