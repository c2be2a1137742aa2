package bootconf_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/guestos/bootconf"
	"github.com/space-sandbox/space/internal/guestos/newc"
)

func config() bootconf.Config {
	return bootconf.Config{Token: strings.Repeat("t0", 16), SandboxID: "sbx_0123456789", Hostname: "box"}
}

// unpack reads archives that follow each other, as the kernel does: zero bytes between them are skipped.
func unpack(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	r := bytes.NewReader(data)
	for r.Len() > 0 {
		if b, _ := r.ReadByte(); b == 0 {
			continue
		}
		if err := r.UnreadByte(); err != nil {
			t.Fatal(err)
		}
		if at := len(data) - r.Len(); at%4 != 0 {
			t.Fatalf("an archive starts at %d, which is no multiple of 4", at)
		}
		unpackOne(t, r, files)
	}
	return files
}

func unpackOne(t *testing.T, r io.Reader, files map[string][]byte) {
	t.Helper()
	archive := cpio.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("read archive: %v", err)
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendedArchiveIsTakenOnce(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	first := newc.NewWriter(&buf)
	if err := errors.Join(first.File("init", 0o755, []byte("elf")), first.Close()); err != nil {
		t.Fatal(err)
	}
	if err := bootconf.Append(&buf, config()); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, buf.Bytes())
	if string(files["init"]) != "elf" {
		t.Errorf("the first archive has %q as init", files["init"])
	}
	path := filepath.Join(t.TempDir(), filepath.Base(bootconf.Path))
	if err := os.WriteFile(path, files[filepath.Base(bootconf.Path)], 0o400); err != nil {
		t.Fatal(err)
	}
	got, err := bootconf.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config(), got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if _, err := bootconf.Take(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second Take: %v, want that the file is gone", err)
	}
}

func TestTakeRemovesWhatItRefuses(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"not json":      "nonsense",
		"unknown field": `{"token":"` + config().Token + `","sandbox_id":"a","lease":1}`,
		"second value":  `{"token":"` + config().Token + `","sandbox_id":"a"} {}`,
		"no token":      `{"sandbox_id":"a"}`,
		"too large":     strings.Repeat(" ", 17<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "boot.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := bootconf.Take(path); err == nil {
				t.Error("accepted")
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file is still there: %v", err)
			}
		})
	}
}

func TestValidateNeverQuotesTheToken(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "short", "has spaces " + config().Token, strings.Repeat("x", 257), config().Token + "\x00"} {
		c := config()
		c.Token = token
		err := bootconf.Append(io.Discard, c)
		if err == nil {
			t.Fatalf("token %q was accepted", token)
		}
		if token != "" && strings.Contains(err.Error(), token) {
			t.Errorf("the error quotes the token: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"token":"0123456789abcdef0123456789abcdef","sandbox_id":"sbx_1","hostname":"h"}`))
	f.Add([]byte(`{"token":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := bootconf.Parse(data)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("Parse gave a configuration that Validate refuses: %v", err)
		}
		if err := bootconf.Append(io.Discard, c); err != nil {
			t.Errorf("a parsed configuration cannot be written: %v", err)
		}
	})
}
