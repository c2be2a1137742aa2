package auth_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

func sandboxClaims(now time.Time) auth.SandboxClaims {
	return auth.SandboxClaims{SandboxID: sandbox.NewID(), Scopes: auth.Scopes(), ExpiresAt: now.Add(time.Hour)}
}

func TestSandboxTokens(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)
	s := auth.NewSigner()
	want := sandboxClaims(now)
	token, expires, err := s.SignSandbox(want)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token, auth.TokenPrefix) || len(token) > 600 {
		t.Errorf("%d bytes: %s", len(token), token)
	}
	if d := expires.Sub(want.ExpiresAt); d < 0 || d >= time.Second {
		t.Errorf("it expires %v after what was asked for", d)
	}
	v := auth.NewVerifier(s.PublicKey())
	got, err := v.VerifySandbox(token, now)
	if err != nil {
		t.Fatal(err)
	}
	want.ExpiresAt, want.TokenID = expires, got.TokenID
	if d := cmp.Diff(want, got); d != "" || len(got.TokenID) != 32 {
		t.Errorf("(-want +got):\n%s", d)
	}
	if again, _, err := s.SignSandbox(want); err != nil || again == token {
		t.Errorf("two tokens of the same claims are one: %v", err)
	}
	_, err = v.VerifySandbox(token, expires)
	wantRefused(t, "expired", err)
	_, err = auth.NewVerifier(auth.NewSigner().PublicKey()).VerifySandbox(token, now)
	wantRefused(t, "another key", err)
	_, err = auth.NewVerifier(nil).VerifySandbox(token, now)
	wantRefused(t, "no key", err)
	_, err = v.VerifySandbox(auth.TokenPrefix+strings.Repeat("a", 10_000), now)
	wantRefused(t, "long", err)
	for i := range token { // any changed character
		b := []byte(token)
		if b[i] = 'A'; token[i] == 'A' {
			b[i] = 'Q'
		}
		if _, err := v.VerifySandbox(string(b), now); err == nil {
			t.Errorf("a token with character %d changed was accepted", i)
		}
	}
	for name, c := range map[string]auth.SandboxClaims{"nothing": {}, "no scopes": {SandboxID: want.SandboxID, ExpiresAt: now},
		"no expiry": {SandboxID: want.SandboxID, Scopes: auth.Scopes()}, "no sandbox": {Scopes: auth.Scopes(), ExpiresAt: now}} {
		if _, _, err := s.SignSandbox(c); err == nil {
			t.Errorf("%s: claims were signed", name)
		}
	}
}

// TestKindsOfTokens shows that the audience keeps tokens apart that one key has signed.
func TestKindsOfTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := auth.NewSigner()
	v := auth.NewVerifier(s.PublicKey())
	forSandbox, _, err := s.SignSandbox(sandboxClaims(now))
	if err != nil {
		t.Fatal(err)
	}
	forAttach, _, err := s.SignAttach(claims(now))
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{"as it is": forSandbox, "without its prefix": strings.TrimPrefix(forSandbox, auth.TokenPrefix)} {
		_, err := v.VerifyAttach(token, now)
		wantRefused(t, "a sandbox token "+name+" as an attach token", err)
	}
	for name, token := range map[string]string{"as it is": forAttach, "with the prefix": auth.TokenPrefix + forAttach} {
		_, err := v.VerifySandbox(token, now)
		wantRefused(t, "an attach token "+name+" as a sandbox token", err)
	}
	for name, token := range map[string]string{"sandbox": forSandbox, "attach": forAttach} {
		_, err := auth.ParseKey(token)
		wantRefused(t, name+" token as a key", err)
	}
}

// TestForgedSandboxTokens makes tokens that the signer never would, some even with its key.
func TestForgedSandboxTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := auth.NewVerifier(pub)
	changed := func(name string, value any) jwt.MapClaims {
		c := jwt.MapClaims{"aud": "space.sandbox", "sub": string(sandbox.NewID()), "exp": now.Add(time.Hour).Unix(),
			"jti": strings.Repeat("0f", 16), "space_scopes": []string{"files"}}
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	sign := func(m jwt.SigningMethod, c jwt.MapClaims, k any) string {
		token, err := jwt.NewWithClaims(m, c).SignedString(k)
		if err != nil {
			t.Fatal(err)
		}
		return auth.TokenPrefix + token
	}
	if c, err := v.VerifySandbox(sign(jwt.SigningMethodEdDSA, changed("aud", "space.sandbox"), key), now); err != nil || c.Allows(auth.ScopeCommands) || !c.Allows(auth.ScopeFiles) {
		t.Fatalf("positive control: %+v %v", c, err)
	}
	for name, token := range map[string]string{
		"none":             sign(jwt.SigningMethodNone, changed("jti", strings.Repeat("0", 32)), jwt.UnsafeAllowNoneSignatureType),
		"hmac of pub":      sign(jwt.SigningMethodHS256, changed("jti", strings.Repeat("0", 32)), []byte(pub)),
		"attach audience":  sign(jwt.SigningMethodEdDSA, changed("aud", "space.attach"), key),
		"no audience":      sign(jwt.SigningMethodEdDSA, changed("aud", nil), key),
		"no expiry":        sign(jwt.SigningMethodEdDSA, changed("exp", nil), key),
		"expired":          sign(jwt.SigningMethodEdDSA, changed("exp", now.Add(-time.Second).Unix()), key),
		"not yet":          sign(jwt.SigningMethodEdDSA, changed("nbf", now.Add(time.Hour).Unix()), key),
		"no sandbox":       sign(jwt.SigningMethodEdDSA, changed("sub", nil), key),
		"a name":           sign(jwt.SigningMethodEdDSA, changed("sub", "box"), key),
		"a path":           sign(jwt.SigningMethodEdDSA, changed("sub", "../../etc"), key),
		"no scopes":        sign(jwt.SigningMethodEdDSA, changed("space_scopes", nil), key),
		"no list":          sign(jwt.SigningMethodEdDSA, changed("space_scopes", "files"), key),
		"an unknown scope": sign(jwt.SigningMethodEdDSA, changed("space_scopes", []string{"files", "admin"}), key),
		"no id":            sign(jwt.SigningMethodEdDSA, changed("jti", nil), key),
		"a key's id":       sign(jwt.SigningMethodEdDSA, changed("jti", "key_0123456789abcdef0123"), key),
		"empty":            "",
		"the prefix alone": auth.TokenPrefix,
		"dots":             auth.TokenPrefix + "..",
		"prefix twice":     auth.TokenPrefix + sign(jwt.SigningMethodEdDSA, changed("aud", "space.sandbox"), key),
	} {
		_, err := v.VerifySandbox(token, now)
		wantRefused(t, name, err)
		if err != nil && len(token) > 20 && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error repeats the token", name)
		}
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	got, err := auth.ParseScopes([]string{"files", "commands", "files"})
	if d := cmp.Diff([]auth.Scope{auth.ScopeCommands, auth.ScopeFiles}, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	for name, bad := range map[string][]string{"none": nil, "ports": {"files", "ports:3000"}, "case": {"Files"}, "empty": {""}, "all": {"*"},
		"long": {strings.Repeat("x", 10_000)}} {
		got, err := auth.ParseScopes(bad)
		if sandbox.CodeOf(err) != sandbox.CodeInvalidArgument || got != nil || !strings.Contains(err.Error(), "commands, files") || len(err.Error()) > 400 {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

func TestPrincipals(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("0f", 16)
	key, token := auth.Principal{KeyID: "key_1", Role: auth.RoleAdmin}, auth.Principal{Token: &auth.SandboxClaims{TokenID: id}}
	if key.ID() != "key_1" || token.ID() != "token_"+id || token.Role != "" {
		t.Errorf("%q %q", key.ID(), token.ID())
	}
}

func FuzzVerifySandbox(f *testing.F) {
	s := auth.NewSigner()
	now := time.Now()
	token, _, err := s.SignSandbox(sandboxClaims(now))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(auth.TokenPrefix + "a.b.c")
	f.Add("")
	v := auth.NewVerifier(s.PublicKey())
	f.Fuzz(func(t *testing.T, text string) {
		for _, text := range []string{text, auth.TokenPrefix + text} {
			if _, err := v.VerifySandbox(text, now); err == nil && text != token {
				t.Errorf("accepted %q", text)
			}
		}
	})
}

// FuzzSandboxClaims signs whatever it gets with the right key: what is accepted then is still of the right form.
func FuzzSandboxClaims(f *testing.F) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	v := auth.NewVerifier(pub)
	now := time.Unix(1_800_000_000, 0)
	f.Add([]byte(`{"aud":"space.sandbox","sub":"aaaaaaaaaaaaaaaaaaaa","exp":1800000001,"jti":"00000000000000000000000000000000","space_scopes":["files"]}`))
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","typ":"JWT"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		signed := header + "." + base64.RawURLEncoding.EncodeToString(payload)
		token := auth.TokenPrefix + signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(signed)))
		c, err := v.VerifySandbox(token, now)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeUnauthenticated {
				t.Errorf("%q: %v", payload, err)
			}
			return
		}
		_, bad := sandbox.ParseID(string(c.SandboxID))
		if bad != nil || len(c.TokenID) != 32 || len(c.Scopes) == 0 || len(c.Scopes) > len(auth.Scopes()) || !c.ExpiresAt.After(now) {
			t.Errorf("%q was accepted: %+v", payload, c)
		}
	})
}
