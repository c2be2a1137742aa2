package spacetest_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/spacetest"
)

func tokenOf(t *testing.T, i *spacetest.Installation, ref string, scopes ...string) *client.Client {
	t.Helper()
	token, err := i.Client.CreateToken(t.Context(), ref, apiv1.CreateToken{Scopes: scopes})
	if err != nil {
		t.Fatal(err)
	}
	return client.New(i.Client.BaseURL, token.Token)
}

// patiently calls do again until the parts are back.
func patiently(t *testing.T, what string, do func() error) {
	t.Helper()
	for {
		err := do()
		if err == nil {
			return
		}
		if !client.IsRetryable(err) || t.Context().Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestTokens: a sandbox token opens its sandbox and nothing else, over restarts of each part, until its sandbox is
// deleted.
func TestTokens(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	box, other := create(t, i), create(t, i)
	holder, foreign := tokenOf(t, i, box.ID, "commands", "files"), tokenOf(t, i, other.ID, "commands", "files")
	cmd, err := holder.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Start: true, Record: true, Argv: []string{"sh", "-c", "echo mine; exec sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for part, restart := range map[string]func(){
		"nothing": func() {},
		"control": func() { i.Stop("control"); i.StartControl() },
		"gateway": func() { i.Stop("gateway"); i.StartGateway() },
		"node":    func() { i.Stop("node"); i.StartNode() },
	} {
		restart()
		t.Log("restarted:", part)
		patiently(t, "exec", func() error {
			res, err := holder.Exec(t.Context(), box.ID, apiv1.Exec{Argv: []string{"echo", part}})
			if err == nil && res.Stdout != part+"\n" {
				t.Errorf("exec: %+v", res)
			}
			return err
		})
		patiently(t, "write", func() error {
			_, err := holder.WriteFile(t.Context(), box.ID, "note.txt", strings.NewReader(part), client.FileOptions{})
			return err
		})
		onlyItsOwn(t, foreign, box.ID, cmd.ID)
	}
	attachWith(t, holder, box.ID)
	keptApart(t, i.Client.BaseURL, holder.Key, cmd)
	if _, err := holder.Kill(t.Context(), cmd.ID); err != nil {
		t.Errorf("kill: %v", err)
	}
	if _, err := i.Client.DeleteSandbox(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Sandbox(t.Context(), box.ID); client.Code(err) != "unauthenticated" {
		t.Errorf("after the delete: %v", err)
	}
	if _, err := foreign.Sandbox(t.Context(), other.ID); err != nil {
		t.Errorf("another token: %v", err)
	}
}

// onlyItsOwn tries what the token of another sandbox must not do with box and its session.
func onlyItsOwn(t *testing.T, foreign *client.Client, box, cmd string) {
	t.Helper()
	ctx := t.Context()
	for what, do := range map[string]func() error{
		"not_found show":       func() error { _, err := foreign.Sandbox(ctx, box); return err },
		"not_found exec":       func() error { _, err := foreign.Exec(ctx, box, apiv1.Exec{Argv: []string{"id"}}); return err },
		"not_found read":       func() error { _, err := foreign.ReadFile(ctx, box, "note.txt", client.FileOptions{}); return err },
		"not_found commands":   func() error { _, err := foreign.ListCommands(ctx, box, client.CommandQuery{}); return err },
		"not_found command":    func() error { _, err := foreign.Command(ctx, cmd); return err },
		"not_found attach":     func() error { _, err := foreign.AttachToken(ctx, cmd); return err },
		"not_found kill":       func() error { _, err := foreign.Kill(ctx, cmd); return err },
		"not_found transcript": func() error { _, err := foreign.Transcript(ctx, cmd); return err },
		"not_found stdin": func() error {
			_, err := foreign.WriteStdin(ctx, cmd, strings.NewReader("x"), client.StdinOptions{})
			return err
		},
		"forbidden delete": func() error { _, err := foreign.DeleteSandbox(ctx, box); return err },
		"forbidden token": func() error {
			_, err := foreign.CreateToken(ctx, box, apiv1.CreateToken{Scopes: []string{"files"}})
			return err
		},
		"forbidden node": func() error { _, err := foreign.Node(ctx); return err },
	} {
		code, _, _ := strings.Cut(what, " ")
		if err := do(); client.Code(err) != code {
			t.Errorf("%s: %v", what, err)
		}
	}
	list, err := foreign.ListSandboxes(ctx, client.SandboxQuery{Page: client.Page{Count: true}})
	if err != nil || len(list.Items) != 1 || *list.Total != 1 || list.Items[0].ID == box {
		t.Errorf("list: %+v, %v", list, err)
	}
}

// attachWith follows a session with the attach token that the sandbox token gets.
func attachWith(t *testing.T, holder *client.Client, box string) {
	t.Helper()
	cmd, err := holder.CreateCommand(t.Context(), box, apiv1.CreateCommand{Argv: []string{"sh", "-c", "echo seen; exit 4"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a, err := holder.Attach(t.Context(), cmd.ID, client.AttachOptions{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); err != nil || exit.ExitCode == nil || *exit.ExitCode != 4 || out.String() != "seen\n" {
		t.Errorf("attach: %+v, %v, %q", exit, err, out.String())
	}
}

// keptApart shows that the two kinds of tokens are not taken for each other.
func keptApart(t *testing.T, api, token string, cmd *apiv1.CreatedCommand) {
	t.Helper()
	for _, key := range []string{cmd.Attach.Token, "space_sbx_" + cmd.Attach.Token} {
		if _, err := client.New(api, key).Command(t.Context(), cmd.ID); client.Code(err) != "unauthenticated" {
			t.Errorf("an attach token at the API: %v", err)
		}
	}
	base, _, _ := strings.Cut(strings.Replace(cmd.Attach.URL, "ws", "http", 1), "/v1/")
	for name, bearer := range map[string]string{"200": cmd.Attach.Token, "401": token, "401 without its prefix": strings.TrimPrefix(token, "space_sbx_")} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/commands/"+cmd.ID+"/output?stream=stdout", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if !strings.HasPrefix(res.Status, name[:3]) {
			t.Errorf("%s: %s", name, res.Status)
		}
	}
}
