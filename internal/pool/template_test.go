package pool

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTemplatesAreListedNewestFirstAndNamesMove(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		old := install(t, p, 8, 1)
		st, newer := stageImage(t, p, 8, 2)
		newer.CreatedAt = newer.CreatedAt.Add(time.Hour)
		if err := p.InstallTemplate(t.Context(), st, newer); err != nil {
			t.Fatal(err)
		}
		old.Names = []string{}
		got, err := p.ListTemplates()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Manifest{newer, old}, got); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}

func TestInstallRefusesWhatDoesNotMatch(t *testing.T) {
	t.Parallel()
	p := openPool(t, Config{Dir: t.TempDir(), Kind: KindCopy})
	for name, damage := range map[string]func(*Manifest){
		"digest":  func(m *Manifest) { m.Digest = digestPrefix + strings.Repeat("0", 64) },
		"size":    func(m *Manifest) { m.SizeBytes-- },
		"form":    func(m *Manifest) { m.Names = []string{"../evil"} },
		"no time": func(m *Manifest) { m.CreatedAt = time.Time{} },
	} {
		st, m := stageImage(t, p, 8, 1)
		damage(&m)
		if err := p.InstallTemplate(t.Context(), st, m); err == nil {
			t.Errorf("%s: installed", name)
		}
	}
	for _, dir := range []string{templatesDir, stagingDir} {
		if left, err := os.ReadDir(filepath.Join(p.cfg.Dir, dir)); err != nil || len(left) != 0 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
}

// A crash leaves a stage, or a template without its manifest: neither is a template, both are replaced.
func TestInstallAfterACrash(t *testing.T) {
	forEachKind(t, func(t *testing.T, p *Pool) {
		_, m := stageImage(t, p, 8, 1) // the process dies here
		half := filepath.Join(p.cfg.Dir, templatesDir, strings.TrimPrefix(m.Digest, digestPrefix))
		if err := os.Mkdir(half, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(half, rootfsName), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := p.ListTemplates(); err != nil || len(list) != 0 {
			t.Errorf("list %v, %v", list, err)
		}
		if err := p.SweepStaging("test"); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Join(p.cfg.Dir, stagingDir)); err != nil || len(left) != 0 {
			t.Errorf("staging has %v, %v", left, err)
		}
		install(t, p, 8, 1)
		tmpl, err := p.OpenTemplate(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		defer tmpl.Close()
		if got, err := Digest(t.Context(), tmpl.Rootfs); err != nil || got != m.Digest {
			t.Errorf("installed %s, %v", got, err)
		}
	})
}

func TestSweepLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	p := openPool(t, Config{Dir: t.TempDir(), Kind: KindCopy})
	mine, err := p.NewStage("setup")
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.NewStage("import")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SweepStaging("setup"); err != nil {
		t.Fatal(err)
	}
	if _, err := mine.CreateRootfs(); err == nil {
		t.Error("the stage is still there")
	}
	f, err := other.CreateRootfs()
	if err != nil {
		t.Fatalf("another owner's stage was swept: %v", err)
	}
	f.Close()
}

func TestReinstallReplacesTheManifest(t *testing.T) {
	t.Parallel()
	p := openPool(t, Config{Dir: t.TempDir(), Kind: KindCopy})
	install(t, p, 8, 1)
	st, m := stageImage(t, p, 8, 1)
	m.Names = []string{"mini:v2"}
	if err := p.InstallTemplate(t.Context(), st, m); err != nil {
		t.Fatal(err)
	}
	if got, err := p.ListTemplates(); err != nil || len(got) != 1 || !cmp.Equal(got[0], m) {
		t.Errorf("list %+v, %v", got, err)
	}
}

func FuzzParseManifest(f *testing.F) {
	good := Manifest{Digest: digestPrefix + strings.Repeat("a", 64), Names: []string{"base:latest"}, SizeBytes: 1 << 20, MinDiskMiB: 1,
		Env: map[string]string{"PATH": "/bin"}, User: "user", Workdir: "/home/user", CreatedAt: time.Unix(1, 0).UTC()}
	data, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"digest":"sha256:`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		if int64(m.MinDiskMiB)*mib < m.SizeBytes || len(m.Digest) != 71 || strings.ContainsAny(m.Digest, "/.") {
			t.Fatalf("accepted %+v", m)
		}
		out, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseManifest(out)
		if err != nil {
			t.Fatalf("what was written is not read: %v", err)
		}
		if !again.CreatedAt.Equal(m.CreatedAt) || again.Digest != m.Digest {
			t.Fatalf("round trip: %+v, %+v", m, again)
		}
	})
}
