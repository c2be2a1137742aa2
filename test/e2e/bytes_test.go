//go:build realvm

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// testEveryByte sends every byte value on each way into the guest that is not looked at elsewhere: arguments and
// environment, standard input by a request, contents and names of files.
func testEveryByte(t *testing.T, i *installation) {
	text := everyByte()
	res := i.exec("procs", apiv1.Exec{Argv: []string{"sh", "-c", "cat /proc/$$/cmdline /proc/$$/environ; :", text}, Env: map[string]string{"ALL": text}})
	for what, want := range map[string]string{"argv": "\x00" + text + "\x00", "env": "\x00ALL=" + text + "\x00"} {
		if !strings.Contains("\x00"+res.Stdout, want) {
			t.Errorf("%s: %d bytes did not come back as they were", what, len(text))
		}
	}
	all := make([]byte, 256)
	for n := range all {
		all[n] = byte(n)
	}
	made, err := i.client.CreateCommand(t.Context(), "procs", apiv1.CreateCommand{Argv: []string{"sha256sum"}, Stdin: true, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := i.client.WriteStdin(t.Context(), made.ID, bytes.NewReader(all), client.StdinOptions{EOF: true}); err != nil || n != 256 {
		t.Errorf("stdin: %d, %v", n, err)
	}
	out, err := i.client.Output(t.Context(), made.ID, nil, client.OutputOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if said, err := io.ReadAll(out); err != nil || string(said) != fmt.Sprintf("%x  -\n", sha256.Sum256(all)) {
		t.Errorf("stdin: %q, %v", said, err)
	}
	name := strings.ReplaceAll(string(all[1:128]), "/", "") + "é€😀"
	if _, err := i.client.WriteFile(t.Context(), "procs", name, bytes.NewReader(all), client.FileOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := i.sh("procs", "ls -b [!a-z]*"); !strings.HasPrefix(got, `\001\002\003`) {
		t.Errorf("name: %q", got)
	}
	f, err := i.client.ReadFile(t.Context(), "procs", name, client.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if back, err := io.ReadAll(f); err != nil || !bytes.Equal(back, all) {
		t.Errorf("file: %q, %v", back, err)
	}
	testNotText(t, i)
}

// testNotText: JSON carries text only. What is not text is refused, by the server and before it by those who would have
// to change it.
func testNotText(t *testing.T, i *installation) {
	key, err := os.ReadFile(filepath.Join(i.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"{\"argv\":[\"echo\",\"\xff\"]}", "{\"argv\":[\"echo\"],\"env\":{\"A\":\"\xc0\xaf\"}}"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/v1/sandboxes/procs/exec", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(string(said), "malformed_body") || !strings.Contains(string(said), "not UTF-8 at byte") {
			t.Errorf("%q: %d %s, %v", body, res.StatusCode, said, err)
		}
	}
	if _, err := i.client.Exec(t.Context(), "procs", apiv1.Exec{Argv: []string{"echo", "\xff"}}); err == nil || !strings.Contains(err.Error(), "argv[1]") {
		t.Errorf("the SDK: %v", err)
	}
	if _, err := i.client.ReadFile(t.Context(), "procs", "\xff", client.FileOptions{}); client.Code(err) != "invalid_argument" || !strings.Contains(err.Error(), "path") {
		t.Errorf("a path: %v", err)
	}
	if out, err := i.space(t.Context(), "exec", "procs", "--", "echo", "\xff"); err == nil || !strings.Contains(out, "argv[1]") {
		t.Errorf("the command line: %q, %v", out, err)
	}
}
