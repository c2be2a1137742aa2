//go:build realvm

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/part"
)

// spaceAs runs one command of the CLI with a key or token and nothing else: no data directory to find a key in.
func (i *installation) spaceAs(key string, args ...string) (string, error) {
	cmd := exec.CommandContext(i.t.Context(), filepath.Join(i.bin, "space"), args...)
	cmd.Env = append(os.Environ(), "SPACE_URL="+i.url, "SPACE_API_KEY="+key, "SPACE_DATA_DIR=/nonexistent")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestTokens: a token made by the CLI opens one microVM and nothing else, while every process of the installation is
// killed, and dies with its sandbox.
func TestTokens(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box, other := i.create(apiv1.CreateSandbox{Name: "own"}), i.create(apiv1.CreateSandbox{Name: "other"})
	out, err := i.space(t.Context(), "token", "create", "own", "--scope", "commands,files", "--ttl", "10m")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	token := strings.TrimSpace(out)
	its, err := i.client.CreateCommand(t.Context(), other.ID, apiv1.CreateCommand{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	i.opensItsOwn(token, box.ID, its.ID)
	for _, name := range []string{part.Control, part.Node, part.Gateway} {
		i.killPart(name)
		i.eventually(readyTimeout, "ready after "+name+" was killed", func() bool { return i.client.Ready(t.Context()) == nil })
		i.opensItsOwn(token, box.ID, its.ID)
	}
	i.killUp()
	i.start()
	i.opensItsOwn(token, box.ID, its.ID)
	i.delete("own")
	i.create(apiv1.CreateSandbox{Name: "own"})
	if out, err := i.spaceAs(token, "show", "own"); err == nil || !strings.Contains(out, "its sandbox is deleted") {
		t.Errorf("after the delete: %v %s", err, out)
	}
}

// opensItsOwn uses a token for sandbox own, by the CLI and the SDK, and tries the rest. its is a session of another
// sandbox.
func (i *installation) opensItsOwn(token, box, its string) {
	t := i.t
	t.Helper()
	holder := client.New(i.url, token)
	note := []byte(time.Now().String())
	if _, err := holder.WriteFile(t.Context(), "own", "note.txt", bytes.NewReader(note), client.FileOptions{}); err != nil {
		t.Errorf("write: %v", err)
	}
	if out, err := i.spaceAs(token, "exec", "own", "--", "cat", "note.txt"); err != nil || out != string(note) {
		t.Errorf("exec: %v %q, want %q", err, out, note)
	}
	if out, err := i.spaceAs(token, "ls", "-q"); err != nil || out != box+"\n" {
		t.Errorf("ls: %v %q", err, out)
	}
	for code, do := range map[string]func() error{
		"not_found": func() error {
			_, err := holder.Exec(t.Context(), "other", apiv1.Exec{Argv: []string{"id"}})
			return err
		},
		"forbidden": func() error { _, err := holder.DeleteSandbox(t.Context(), box); return err },
	} {
		if err := do(); client.Code(err) != code {
			t.Errorf("%v, want %s", err, code)
		}
	}
	if _, err := holder.AttachToken(t.Context(), its); client.Code(err) != "not_found" {
		t.Errorf("another one's session: %v", err)
	}
}
