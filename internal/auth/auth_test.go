package auth_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

func wantRefused(t *testing.T, name string, err error) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != sandbox.CodeUnauthenticated {
		t.Errorf("%s: %q %v, want unauthenticated", name, got, err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	k := auth.NewKey()
	if got, err := auth.ParseKey(string(k)); err != nil || got != k {
		t.Errorf("ParseKey(NewKey()): %v", err)
	}
	if auth.NewKey() == k {
		t.Error("two keys are equal")
	}
	for _, bad := range []string{"", "e2b_", string(k)[1:], string(k) + "0", string(k)[:43], strings.ToUpper(string(k)),
		"e2b_" + strings.Repeat("g", 40), " " + string(k)} {
		_, err := auth.ParseKey(bad)
		wantRefused(t, bad, err)
		if bad != "" && err != nil && strings.Contains(err.Error(), bad) && len(bad) > 10 {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
	h := auth.Hash(k)
	if got, err := auth.ParseKeyHash(" " + h.String() + "\n"); err != nil || !got.Equal(h) {
		t.Errorf("ParseKeyHash: %v %v", got, err)
	}
	if h.Equal(auth.Hash(auth.NewKey())) {
		t.Error("hashes of two keys are equal")
	}
	for _, bad := range []string{"", "zz", h.String()[2:], h.String() + "00"} {
		if _, err := auth.ParseKeyHash(bad); err == nil {
			t.Errorf("hash %q was accepted", bad)
		}
	}
}

func claims(now time.Time) auth.AttachClaims {
	return auth.AttachClaims{CommandID: sandbox.NewCommandID(), SandboxID: sandbox.NewID(), ProcessID: sandbox.NewProcessID(),
		ExpiresAt: now.Add(time.Hour)}
}

func TestAttachTokens(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 500, time.UTC)
	s := auth.NewSigner()
	want := claims(now)
	token, expires, err := s.SignAttach(want)
	if err != nil {
		t.Fatal(err)
	}
	v := auth.NewVerifier(s.PublicKey())
	got, err := v.VerifyAttach(token, now)
	if err != nil {
		t.Fatal(err)
	}
	want.ExpiresAt, want.TokenID = expires, got.TokenID
	if d := cmp.Diff(want, got); d != "" || got.TokenID == "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	_, err = v.VerifyAttach(token, expires.Add(time.Second))
	wantRefused(t, "expired", err)
	_, err = auth.NewVerifier(auth.NewSigner().PublicKey()).VerifyAttach(token, now)
	wantRefused(t, "another key", err)
	_, err = auth.NewVerifier(nil).VerifyAttach(token, now)
	wantRefused(t, "no key", err)
	_, err = v.VerifyAttach(strings.Repeat("a", 10000), now)
	wantRefused(t, "long", err)
	for i := range token { // any changed character
		b := []byte(token)
		if b[i] = 'A'; token[i] == 'A' {
			b[i] = 'Q'
		}
		if _, err := v.VerifyAttach(string(b), now); err == nil {
			t.Errorf("a token with character %d changed was accepted", i)
		}
	}
	if _, _, err := s.SignAttach(auth.AttachClaims{CommandID: want.CommandID}); err == nil {
		t.Error("claims without a sandbox were signed")
	}
}

// TestForgedTokens makes tokens that the signer never would, some even with its key.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := auth.NewVerifier(pub)
	good := func() jwt.MapClaims {
		return jwt.MapClaims{"aud": "space.attach", "sub": string(sandbox.NewCommandID()), "exp": now.Add(time.Hour).Unix(),
			"jti": "x", "space_sandbox": string(sandbox.NewID()), "space_process": string(sandbox.NewProcessID())}
	}
	sign := func(m jwt.SigningMethod, c jwt.MapClaims, k any) string {
		token, err := jwt.NewWithClaims(m, c).SignedString(k)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	if _, err := v.VerifyAttach(sign(jwt.SigningMethodEdDSA, good(), key), now); err != nil {
		t.Fatalf("positive control: %v", err)
	}
	changed := func(name string, value any) jwt.MapClaims {
		c := good()
		if value == nil {
			delete(c, name)
		} else {
			c[name] = value
		}
		return c
	}
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`))
	for name, token := range map[string]string{
		"none":           sign(jwt.SigningMethodNone, good(), jwt.UnsafeAllowNoneSignatureType),
		"none by header": header + sign(jwt.SigningMethodEdDSA, good(), key)[20:],
		"hmac of pub":    sign(jwt.SigningMethodHS256, good(), []byte(pub)),
		"audience":       sign(jwt.SigningMethodEdDSA, changed("aud", "space.port"), key),
		"no audience":    sign(jwt.SigningMethodEdDSA, changed("aud", nil), key),
		"no expiry":      sign(jwt.SigningMethodEdDSA, changed("exp", nil), key),
		"no sandbox":     sign(jwt.SigningMethodEdDSA, changed("space_sandbox", nil), key),
		"path in id":     sign(jwt.SigningMethodEdDSA, changed("space_sandbox", "../../etc"), key),
		"sub":            sign(jwt.SigningMethodEdDSA, changed("sub", "cmd_x"), key),
		"process":        sign(jwt.SigningMethodEdDSA, changed("space_process", ""), key),
		"empty":          "",
		"dots":           "..",
	} {
		_, err := v.VerifyAttach(token, now)
		wantRefused(t, name, err)
		if err != nil && token != "" && token != ".." && strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error repeats the token", name)
		}
	}
}

func TestSignerFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "signing.key")
	signers := make([]*auth.Signer, 8)
	var wg sync.WaitGroup
	for i := range signers {
		wg.Go(func() {
			var err error
			if signers[i], err = auth.LoadOrCreateSigner(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range signers {
		if s == nil || !s.PublicKey().Equal(signers[0].PublicKey()) {
			t.Fatal("two signers of one file have different keys")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".signing-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.LoadOrCreateSigner(path); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("a key that others may read: %v", err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.LoadOrCreateSigner(path); sandbox.CodeOf(err) != sandbox.CodeHostSetup {
		t.Errorf("a damaged key: %v", err)
	}
}

func FuzzVerifyAttach(f *testing.F) {
	s := auth.NewSigner()
	now := time.Now()
	token, _, err := s.SignAttach(claims(now))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a.b.c")
	f.Add("")
	v := auth.NewVerifier(s.PublicKey())
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := v.VerifyAttach(text, now); err == nil && text != token {
			t.Errorf("accepted %q", text)
		}
	})
}
