package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// Authenticate resolves an API key or a sandbox token.
func (c *Control) Authenticate(ctx context.Context, text string) (auth.Principal, error) {
	if strings.HasPrefix(text, auth.TokenPrefix) {
		return c.authenticateToken(ctx, text)
	}
	key, err := auth.ParseKey(text)
	if err != nil {
		return auth.Principal{}, err
	}
	hash := auth.Hash(key)
	found, err := c.Store.Key(ctx, hash)
	if errors.Is(err, store.ErrNotFound) || err == nil && !found.Hash.Equal(hash) {
		return auth.Principal{}, &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "not authenticated",
			Cause: "the key is not known", Remedy: "send a valid key as Authorization: Bearer <key>"}
	}
	if err != nil {
		return auth.Principal{}, storeError(err)
	}
	return auth.Principal{KeyID: found.ID, Role: found.Role}, nil
}

// importAdminKey takes the hash of the first key from the file that setup has left.
func (c *Control) importAdminKey(ctx context.Context) error {
	if c.AdminHashFile == "" {
		return nil
	}
	f, err := os.Open(c.AdminHashFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("first key: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return fmt.Errorf("first key: %w", err)
	}
	hash, err := auth.ParseKeyHash(string(text))
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the first key cannot be imported",
			Cause: c.AdminHashFile + ": " + err.Error(), Remedy: "run space setup again", Err: err}
	}
	var id [10]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	err = c.Store.Update(ctx, func(tx store.Tx) error {
		return tx.InsertKey(store.Key{ID: "key_" + hex.EncodeToString(id[:]), Hash: hash, Role: auth.RoleAdmin,
			Name: "admin", CreatedAt: c.Now().UTC()})
	})
	if errors.Is(err, store.ErrExists) {
		return nil
	}
	return storeError(err)
}
