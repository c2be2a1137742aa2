package machine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestWithHostname(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ hosts, want string }{
		"empty":          {"", "127.0.1.1\tbox\n"},
		"added":          {"127.0.0.1 localhost\n", "127.0.0.1 localhost\n127.0.1.1\tbox\n"},
		"replaced":       {"127.0.1.1 old older\n# end", "# end\n127.0.1.1\tbox\n"},
		"indented, tabs": {"\t127.0.1.1\told\n10.0.0.1 a\n", "10.0.0.1 a\n127.0.1.1\tbox\n"},
		"similar stays":  {"127.0.1.11 other\n", "127.0.1.11 other\n127.0.1.1\tbox\n"},
	} {
		got := withHostname(c.hosts, "box")
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if again := withHostname(got, "box"); again != got {
			t.Errorf("%s: a second time gives %q", name, again)
		}
	}
}

func TestWriteHostname(t *testing.T) {
	t.Parallel()
	etc := t.TempDir()
	for _, name := range []string{"first", "second"} {
		if err := writeHostname(etc, name); err != nil {
			t.Fatal(err)
		}
	}
	if got := readFile(t, filepath.Join(etc, "hostname")); got != "second\n" {
		t.Errorf("hostname: %q", got)
	}
	want := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tsecond\n"
	if got := readFile(t, filepath.Join(etc, "hosts")); got != want {
		t.Errorf("hosts: %q, want %q", got, want)
	}
	if entries, err := os.ReadDir(etc); err != nil || len(entries) != 2 {
		t.Errorf("left in etc: %v, %v", entries, err)
	}
}

func TestWriteResolverReplacesALink(t *testing.T) {
	t.Parallel()
	etc := t.TempDir()
	path := filepath.Join(etc, "resolv.conf")
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", path); err != nil {
		t.Fatal(err)
	}
	if err := writeResolver(etc); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, path); got != "nameserver 169.254.0.22\n" {
		t.Errorf("%q", got)
	}
}

func TestImageWithoutEtc(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(t.TempDir(), "etc")
	if err := writeResolver(absent); err != nil {
		t.Error(err)
	}
	if err := writeHostname(absent, "box"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(absent); err == nil {
		t.Error("the directory was made")
	}
}

func TestOddHostsFilesDoNotBlock(t *testing.T) {
	t.Parallel()
	etc := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(etc, "hosts"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := writeHostname(etc, "box"); err == nil {
		t.Error("a pipe was taken for a hosts file")
	}
}
