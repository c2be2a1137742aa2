package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/datadir"
)

// unpack returns the files of a bundle.
func unpack(t *testing.T, bundle io.Reader) map[string]string {
	t.Helper()
	zr, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "space-bundle/")] = string(data)
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestBundleHasNoSecrets puts secrets wherever one may get to and looks for them in the bundle.
func TestBundleHasNoSecrets(t *testing.T) {
	t.Parallel()
	dir := &datadir.Dir{Path: t.TempDir()}
	const (
		key    = "e2b_0123456789abcdef0123456789abcdef01234567"
		other  = "e2b_ffffffffffffffffffffffffffffffffffffffff"
		agent  = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
		jwt    = "eyJhbGciOiJFZERTQSJ9.eyJjb21tYW5kIjoiY21kXzEifQ.c2lnbmF0dXJl"
		token  = "space_sbx_eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2FuZGJveA"
		env    = "value-of-an-environment"
		meta   = "value-of-metadata"
		arg    = "argument-with-a-password"
		passed = "a secret of the caller"
		digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	)
	signing := strings.Repeat("signing key ", 4)
	write(t, dir.AdminKeyFile(), key+"\n")
	write(t, dir.SigningKeyFile(), signing)
	write(t, dir.AdminHashFile(), strings.Repeat("ab", 32))
	write(t, dir.InstallationFile(), `{"id":"abc123","admin_key":"`+key+`"}`)
	write(t, filepath.Join(dir.MachinesDir(), "m1.json"), `{"id":"m1","agent_token":"`+agent+`","template_digest":"`+digest+`","argv":["qemu","`+arg+`"]}`)
	log := filepath.Join(t.TempDir(), "up.log")
	write(t, log, strings.Join([]string{"level=INFO msg=ready process=control", "Authorization: Bearer " + jwt, "token=" + agent, "key " + other,
		"GET /v1/attach/x?token=abcdefgh12345678&offset=1", "bearer." + jwt, "made " + token + " for box", signing, `password: "two words"`, "https://user:hunter22@example.com/",
		"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----", passed, strings.Repeat("ab", 32)}, "\n"))
	b := Bundle{DataDir: dir.Path, Version: "v1", Logs: []string{log}, Secrets: []string{passed},
		Results: []Check{{Name: "pool", Status: OK, Found: "reflink"}, {Name: "x", Status: Warn, Found: "the key is " + key}},
		Files: []BundleFile{{"api/sandboxes.json", []byte(`{"items":[{"id":"box","env":{"NAME":"` + env + `"},"metadata":{"team":"` + meta + `"},"template":{"digest":"` + digest + `"}}]}`)},
			{"api/commands.json", []byte(`{"items":[{"argv":["sh","` + arg + `"],"env":null,"attach":{"token":"` + jwt + `"},"stdout":"` + base64.StdEncoding.EncodeToString([]byte(env)) + `"}]}`)}}}
	var out bytes.Buffer
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &out)
	for name, text := range files {
		for _, secret := range []string{key, other, agent, jwt, jwt[:20], token, token[:20], token[30:], env, meta, arg, passed, signing, "signing key", "abcdefgh12345678", "two words", "hunter22",
			"MC4CAQAwBQYDK2Vw", strings.Repeat("ab", 32), base64.StdEncoding.EncodeToString([]byte(env))} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", name, secret, text)
			}
		}
	}
	for name, want := range map[string]string{"README.txt": "bug report", "doctor.json": "reflink", "version.txt": "space v1", "installation.json": "abc123",
		"machines/m1.json": digest, "logs/1-up.log": "msg=ready", "api/sandboxes.json": `"NAME": "[removed]"`, "guest/manifest.json.error.txt": "no such file"} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %q", name, want, files[name])
		}
	}
}

// TestTail begins with a whole line: half a secret would not be recognized.
func TestTail(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	write(t, name, "first line\nsecond\nthird\n")
	for limit, want := range map[int64]string{100: "first line\nsecond\nthird\n", 9: "third\n", 6: ""} {
		if got, err := tail(name, limit); err != nil || string(got) != want {
			t.Errorf("%d: %q, %v, want %q", limit, got, err, want)
		}
	}
}
