package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	keyPrefix = "e2b_"
	keyHex    = 40 // 160 random bits
)

// Key is the text of an API key: "e2b_" and 40 lower-case hex digits. It is shown once, to its owner; the store keeps
// a KeyHash only.
type Key string

// KeyHash is the SHA-256 of a key's text. A fast hash is right here: a key has 160 random bits, so nobody can guess it
// from the hash.
type KeyHash [sha256.Size]byte

// NewKey returns a fresh random key.
func NewKey() Key {
	var raw [keyHex / 2]byte
	rand.Read(raw[:]) // never fails (crypto/rand)
	return Key(keyPrefix + hex.EncodeToString(raw[:]))
}

// ParseKey accepts exactly the form NewKey makes; anything else is CodeUnauthenticated. The error never repeats the text.
func ParseKey(s string) (Key, error) {
	rest, ok := strings.CutPrefix(s, keyPrefix)
	if !ok || len(rest) != keyHex || strings.Trim(rest, "0123456789abcdef") != "" {
		return "", unauthenticated("the key has not the form of an API key")
	}
	return Key(s), nil
}

// Hash returns what the store keeps of k.
func Hash(k Key) KeyHash { return sha256.Sum256([]byte(k)) }

// String returns the hash as 64 hex digits, the form in files and stores.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// Equal compares in constant time.
func (h KeyHash) Equal(other KeyHash) bool { return subtle.ConstantTimeCompare(h[:], other[:]) == 1 }

// ParseKeyHash reads 64 hex digits, with white space around them allowed (the content of a file).
func ParseKeyHash(s string) (KeyHash, error) {
	var h KeyHash
	raw, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(raw) != len(h) {
		return h, sandbox.Errorf(sandbox.CodeInvalidArgument, "not the SHA-256 of a key: want 64 hex digits")
	}
	copy(h[:], raw)
	return h, nil
}

func unauthenticated(cause string) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeUnauthenticated, Message: "not authenticated", Cause: cause,
		Remedy: "send a valid key as Authorization: Bearer <key>"}
}
