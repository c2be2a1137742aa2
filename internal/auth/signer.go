package auth

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Signer makes tokens: for a command session, and for a sandbox. Only control has one. It is safe for concurrent use.
type Signer struct {
	key ed25519.PrivateKey
}

// NewSigner returns a Signer with a fresh random key that nobody else has.
func NewSigner() *Signer {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	return &Signer{key: ed25519.NewKeyFromSeed(seed)}
}

// PublicKey returns the key that verifies this signer's tokens (32 bytes).
func (s *Signer) PublicKey() ed25519.PublicKey {
	pub, _ := s.key.Public().(ed25519.PublicKey)
	return pub
}

// LoadOrCreateSigner reads the signing key in path, or makes one and writes it there with mode 0600, durably, before
// it is used, so that tokens outlive restarts. A file that others may read, or that holds no key, is refused: a new
// key in its place would silently invalidate every token.
func LoadOrCreateSigner(path string) (*Signer, error) {
	s, err := loadSigner(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	s = NewSigner()
	if err := writeSecret(path, hex.EncodeToString(s.key.Seed())+"\n"); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("write signing key: %w", err)
	}
	// Read back what is there: of two processes that create the key at once, both then use the same one.
	return loadSigner(path)
}

func loadSigner(path string) (*Signer, error) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, keyFileError(path, fmt.Sprintf("its mode is %v, so others may read it", info.Mode()), "chmod 600 the file")
	}
	text, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, keyFileError(path, "it does not hold 64 hex digits",
			"restore the file, or remove it (the tokens given out so far then stop working)")
	}
	return &Signer{key: ed25519.NewKeyFromSeed(seed)}, nil
}

// writeSecret makes path appear with its whole content or not at all, and refuses (fs.ErrExist) to replace a file.
func writeSecret(path, text string) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".signing-*") // CreateTemp uses mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // a leftover is only untidy: nobody else reads it
	defer tmp.Close()
	if _, err := tmp.WriteString(text); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func keyFileError(path, cause, remedy string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the signing key cannot be used",
		Cause: path + ": " + cause, Remedy: remedy}
}
