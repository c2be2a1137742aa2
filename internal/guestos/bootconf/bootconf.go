// Package bootconf is what one machine is told at boot and no other: node appends it to the initramfs as a second
// archive, the agent takes it from the root file system of the initramfs and removes it before anything else runs.
// So the token is never on a command line and never on a disk. Both sides import this package; it imports little.
package bootconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/space-sandbox/space/internal/guestos/newc"
)

// name is the file's place in the initramfs.
const name = "space-boot.json"

// Path is where the agent finds the configuration.
const Path = "/" + name

// maxSize bounds the file, in bytes.
const maxSize = 16 << 10

// The bounds of a token, in bytes.
const (
	minToken = 32
	maxToken = 256
)

// maxSandboxID and maxHostname bound these fields, in bytes. 64 is the kernel's own limit for host names.
const (
	maxSandboxID = 64
	maxHostname  = 64
)

// Config is the boot configuration of one machine.
type Config struct {
	// Token is what every call to the agent must carry: 32 to 256 printable ASCII characters without spaces.
	Token string `json:"token"`
	// SandboxID is told for logs only.
	SandboxID string `json:"sandbox_id"`
	// Hostname is set until Init gives another; empty: the kernel's default.
	Hostname string `json:"hostname,omitempty"`
}

// Validate says what is wrong with c. It never quotes the token.
func (c Config) Validate() error {
	if len(c.Token) < minToken || len(c.Token) > maxToken || strings.IndexFunc(c.Token, notToken) >= 0 {
		return fmt.Errorf("boot configuration: the token must be %d to %d printable ASCII characters", minToken, maxToken)
	}
	if c.SandboxID == "" || len(c.SandboxID) > maxSandboxID {
		return fmt.Errorf("boot configuration: the sandbox id must have 1 to %d bytes", maxSandboxID)
	}
	if len(c.Hostname) > maxHostname {
		return fmt.Errorf("boot configuration: the host name has more than %d bytes", maxHostname)
	}
	return nil
}

func notToken(r rune) bool { return r <= ' ' || r > '~' }

// Append writes c to w as an archive of its own. What is in w already must end at a multiple of four bytes.
func Append(w io.Writer, c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("boot configuration: %w", err)
	}
	archive := newc.NewWriter(w)
	if err := archive.File(name, 0o400, data); err != nil {
		return fmt.Errorf("boot configuration: %w", err)
	}
	return archive.Close()
}

// Take reads the configuration at path and removes the file, also when it cannot be understood.
func Take(path string) (Config, error) {
	data, err := readBounded(path)
	if removeErr := os.Remove(path); removeErr != nil && err == nil {
		// A token that stays behind could be read by every process of the guest.
		err = fmt.Errorf("boot configuration: %w", removeErr)
	}
	if err != nil {
		return Config{}, err
	}
	return Parse(data)
}

// Parse decodes what Append wrote. Fields it does not know are an error: node and agent come from one build.
func Parse(data []byte) (Config, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("boot configuration: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("boot configuration: data after the end")
	}
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("boot configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("boot configuration: %w", err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("boot configuration: larger than %d bytes", maxSize)
	}
	return data, nil
}
