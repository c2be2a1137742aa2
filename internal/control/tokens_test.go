package control_test

import (
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

func (w *world) token(ref string, ttl time.Duration) control.SandboxToken {
	w.t.Helper()
	token, err := w.c.CreateToken(w.t.Context(), ref, []auth.Scope{auth.ScopeFiles}, ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Name: "box"})
	token := w.token("box", time.Minute)
	who, err := w.c.Authenticate(t.Context(), token.Token)
	if err != nil || who.Token == nil || who.Token.SandboxID != box.ID || !who.Token.ExpiresAt.Equal(token.ExpiresAt) ||
		!who.Token.Allows(auth.ScopeFiles) || who.Token.Allows(auth.ScopeCommands) || who.Role != "" || who.KeyID != "" {
		t.Errorf("%+v %v", who, err)
	}
	if again, err := w.c.Authenticate(t.Context(), w.token("box", time.Minute).Token); err != nil || again.ID() == who.ID() {
		t.Errorf("two tokens are one caller: %+v %v", again, err)
	}
	w.crash()
	w.startControl()
	if after, err := w.c.Authenticate(t.Context(), token.Token); err != nil || after.ID() != who.ID() {
		t.Errorf("after a restart: %+v %v", after, err)
	}
	for _, ttl := range []time.Duration{0, -1, auth.MaxTokenTTL + 1} {
		_, err := w.c.CreateToken(t.Context(), "box", auth.Scopes(), ttl)
		wantCode(t, err, sandbox.CodeInvalidArgument)
	}
	_, err = w.c.CreateToken(t.Context(), "nobody", auth.Scopes(), time.Minute)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = w.c.CreateToken(t.Context(), "box", nil, time.Minute)
	wantCode(t, err, sandbox.CodeInternal)
}

// TestTokensExpire uses a control of another time on the same record.
func TestTokensExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.running(sandbox.Spec{Name: "box"})
	token := w.token("box", time.Minute)
	for at, code := range map[time.Duration]sandbox.Code{-time.Second: "", 0: sandbox.CodeUnauthenticated, time.Hour: sandbox.CodeUnauthenticated} {
		later, err := control.New(t.Context(), control.Deps{Store: w.store, Signer: w.signer, Logger: discard(),
			Now: func() time.Time { return token.ExpiresAt.Add(at) }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := later.Authenticate(t.Context(), token.Token); sandbox.CodeOf(err) != code {
			t.Errorf("%v from its end: %v", at, err)
		}
		if err := later.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTokensDieWithTheSandbox: from the moment a delete is accepted, and also for a sandbox of the same name.
func TestTokensDieWithTheSandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{Name: "box"})
	token := w.token("box", time.Minute)
	deleting := w.running(sandbox.Spec{Name: "deleting"})
	its := w.token("deleting", time.Minute)
	err := w.store.Update(t.Context(), func(tx store.Tx) error {
		now, err := tx.Sandbox(t.Context(), deleting.ID)
		if err != nil {
			return err
		}
		now.State = sandbox.StateDeleting
		_, err = tx.UpdateSandbox(now)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.c.Authenticate(t.Context(), its.Token)
	wantCode(t, err, sandbox.CodeUnauthenticated)
	_, err = w.c.CreateToken(t.Context(), "deleting", auth.Scopes(), time.Minute)
	wantCode(t, err, sandbox.CodeInvalidState)

	w.deleted(box.ID)
	w.running(sandbox.Spec{Name: "box"})
	_, err = w.c.Authenticate(t.Context(), token.Token)
	wantCode(t, err, sandbox.CodeUnauthenticated)
	unknown, _, err := w.signer.SignSandbox(auth.SandboxClaims{SandboxID: sandbox.NewID(), Scopes: auth.Scopes(), ExpiresAt: time.Now().Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.c.Authenticate(t.Context(), unknown)
	wantCode(t, err, sandbox.CodeUnauthenticated)
}

// TestAttachTokensOfTokens: an attach token does not outlive the token it was asked for with.
func TestAttachTokensOfTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	box := w.running(sandbox.Spec{})
	soon := time.Now().Add(time.Minute).Truncate(time.Second).UTC()
	verifier := auth.NewVerifier(w.signer.PublicKey())
	for name, row := range map[string]struct {
		expires time.Time
		limited bool
	}{"soon": {soon, true}, "late": {soon.Add(24 * time.Hour), false}} {
		call := control.Call{Principal: auth.Principal{Token: &auth.SandboxClaims{SandboxID: box.ID, TokenID: name, ExpiresAt: row.expires}}}
		made, err := w.c.CreateCommand(t.Context(), call, string(box.ID), sandbox.CommandSpec{Argv: []string{"sleep"}}, false)
		if err != nil {
			t.Fatal(err)
		}
		attach, err := w.c.AttachCommand(t.Context(), call.Principal, made.Command.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []control.Attach{made.Attach, attach} {
			claims, err := verifier.VerifyAttach(a.Token, time.Now())
			if err != nil || claims.ExpiresAt.Equal(soon) != row.limited || claims.ExpiresAt.After(row.expires) || !claims.ExpiresAt.Equal(a.ExpiresAt) {
				t.Errorf("%s: %+v %v", name, claims, err)
			}
		}
		if owner, err := w.c.CommandSandbox(t.Context(), made.Command.ID); err != nil || owner != box.ID {
			t.Errorf("%s: %s %v", name, owner, err)
		}
	}
	_, err := w.c.CommandSandbox(t.Context(), sandbox.NewCommandID())
	wantCode(t, err, sandbox.CodeNotFound)
}
