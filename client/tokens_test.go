package client_test

import (
	"bytes"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestTokens: a client with a token can do what its scopes say, by attach too, and nothing else.
func TestTokens(t *testing.T) {
	t.Parallel()
	s, c, made := box(t)
	ctx := t.Context()
	ttl := 90.0
	token, err := c.CreateToken(ctx, "box", apiv1.CreateToken{Scopes: []string{"commands"}, TTLSeconds: &ttl}, client.IdempotencyKey("k"))
	if err != nil || len(token.Scopes) != 1 || token.Scopes[0] != "commands" || time.Until(token.ExpiresAt) > 91*time.Second {
		t.Fatalf("%+v, %v", token, err)
	}
	holder := client.New(s.URL, token.Token)
	cmd, err := holder.CreateCommand(ctx, "box", apiv1.CreateCommand{Argv: []string{"echo", "hello"}})
	if err != nil || cmd.SandboxID != made.ID {
		t.Fatalf("%+v, %v", cmd, err)
	}
	var out bytes.Buffer
	a, err := holder.Attach(ctx, cmd.ID, client.AttachOptions{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); err != nil || exit.ExitCode == nil || *exit.ExitCode != 0 || out.String() != "hello\n" {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
	if _, err := holder.ReadFile(ctx, "box", "x", client.FileOptions{}); client.Code(err) != "forbidden" {
		t.Errorf("files: %v", err)
	}
	if _, err := holder.CreateToken(ctx, "box", apiv1.CreateToken{Scopes: []string{"commands"}}); client.Code(err) != "forbidden" {
		t.Errorf("another token: %v", err)
	}
	if _, err := c.CreateToken(ctx, "box", apiv1.CreateToken{Scopes: []string{"ports:80"}}); client.Code(err) != "invalid_argument" {
		t.Errorf("ports: %v", err)
	}
}
