package pool

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Manifest describes one template's content; it lies beside its root file system as manifest.json.
type Manifest struct {
	// Digest is sha256:<64 hex> over the root file system image.
	Digest string `json:"digest"`
	// Names are those it was released under, each with a tag: "base:latest".
	Names []string `json:"names"`
	// SizeBytes is the length of the image.
	SizeBytes int64 `json:"size_bytes"`
	// MinDiskMiB is the smallest disk that holds it.
	MinDiskMiB int               `json:"min_disk_mib"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"` // "" is root
	Workdir    string            `json:"workdir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
}

const (
	digestPrefix = "sha256:"
	// maxManifest bounds what is read of a manifest file.
	maxManifest = 256 << 10
	maxNames    = 64
)

var (
	userName = regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9_.-]{0,63}|[0-9]{1,10})$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

// parseDigest returns the hex part of a digest, which is safe as a file name.
func parseDigest(digest string) (string, error) {
	text, ok := strings.CutPrefix(digest, digestPrefix)
	raw, err := hex.DecodeString(text)
	if !ok || err != nil || len(raw) != 32 || text != strings.ToLower(text) {
		return "", sandbox.Errorf(sandbox.CodeInvalidArgument, "%q is not a sha256 digest", digest)
	}
	return text, nil
}

// ParseManifest reads a manifest and checks each field. Unknown fields are refused.
func ParseManifest(data []byte) (Manifest, error) {
	if len(data) > maxManifest {
		return Manifest{}, fmt.Errorf("template manifest: more than %d bytes", maxManifest)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("template manifest: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, errors.New("template manifest: data after the end")
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, fmt.Errorf("template manifest: %w", err)
	}
	return m, nil
}

// Validate checks each field.
func (m Manifest) Validate() error {
	if _, err := parseDigest(m.Digest); err != nil {
		return err
	}
	if len(m.Names) > maxNames {
		return fmt.Errorf("more than %d names", maxNames)
	}
	for _, name := range m.Names {
		if parsed, err := sandbox.ParseTemplateName(name); err != nil || parsed != name {
			return fmt.Errorf("%q is not a template name with a tag", name)
		}
	}
	if m.SizeBytes <= 0 || m.MinDiskMiB <= 0 || m.MinDiskMiB > sandbox.MaxDiskMiB || int64(m.MinDiskMiB)*mib < m.SizeBytes {
		return fmt.Errorf("size_bytes %d and min_disk_mib %d do not fit together", m.SizeBytes, m.MinDiskMiB)
	}
	if m.User != "" && !userName.MatchString(m.User) {
		return fmt.Errorf("%q is not a user name", m.User)
	}
	if m.Workdir != "" && (!path.IsAbs(m.Workdir) || !cleanText(m.Workdir)) {
		return fmt.Errorf("workdir %q is not an absolute path", m.Workdir)
	}
	for key, value := range m.Env {
		if !envName.MatchString(key) || !cleanText(value) {
			return fmt.Errorf("environment variable %q is not valid", key)
		}
	}
	for _, arg := range m.Entrypoint {
		if !cleanText(arg) {
			return errors.New("the entrypoint is not valid text")
		}
	}
	if m.CreatedAt.IsZero() {
		return errors.New("created_at is missing")
	}
	return nil
}

func cleanText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// encode is what manifest.json holds.
func (m Manifest) encode() ([]byte, error) {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("template manifest: %w", err)
	}
	return append(data, '\n'), nil
}
