package template

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/sandbox"
)

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

func TestHostSources(t *testing.T) {
	t.Parallel()
	etc := fstest.MapFS{
		"sources.list": {Data: []byte("# comment\ndeb-src http://m/debian bookworm main\n" +
			"deb [arch=amd64 signed-by=" + keyring + "] http://mirror.test/debian bookworm main contrib # here\n" +
			"deb http://mirror.test/debian bookworm-backports main\ndeb\ndeb [broken http://x bookworm main\n")},
		"sources.list.d/debian.sources": {Data: []byte("Types: deb deb-src\n# where\nURIs: http://mirror.test/debian\nSuites: bookworm-updates\n" +
			"Components: main\nSigned-By: " + keyring + "\n\nTypes: deb\nURIs: http://sec.test/ http://sec2.test/\nSuites: bookworm-security\nComponents: main\n" +
			"Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA\n\nTypes: deb\nEnabled: no\nURIs: http://off.test\nSuites: bookworm\nComponents: main\n")},
		"sources.list.d/vendor.list":    {Data: []byte("deb https://vendor.test/apt cloud-bookworm main\ndeb https://vendor.test/apt bookworm vendor\n")},
		"sources.list.d/vendor.sources": {Data: []byte("Types: deb\nURIs: https://vendor.test\nSuites: nodistro\nComponents: main\n")},
	}
	got, err := hostSources(etc)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range got {
		lines = append(lines, s.line())
	}
	want := []string{
		"deb [signed-by=" + keyring + "] http://mirror.test/debian bookworm main contrib",
		"deb [signed-by=" + keyring + "] http://mirror.test/debian bookworm-updates main",
		"deb http://sec.test/ bookworm-security main",
		"deb http://sec2.test/ bookworm-security main",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestNoSourceForTheRelease(t *testing.T) {
	t.Parallel()
	_, err := hostSources(fstest.MapFS{"sources.list": {Data: []byte("deb http://m/ubuntu noble main\n")}})
	if sandbox.CodeOf(err) != sandbox.CodeHostSetup || sandbox.AsError(err).Remedy == "" {
		t.Errorf("error is %v", err)
	}
}

func FuzzSources(f *testing.F) {
	f.Add("deb [a=b] http://x bookworm main\n")
	f.Add("Types: deb\nURIs: x\nSuites: bookworm\nComponents: main\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range append(parseList(text), parseDeb822(text)...) {
			if s.uri == "" || s.suite == "" {
				t.Errorf("source without a place: %+v", s)
			}
		}
	})
}
