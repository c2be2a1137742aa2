package ociimage

import (
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// config is the part of an image's configuration that is used.
type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User       string   `json:"User"`
		Env        []string `json:"Env"`
		Entrypoint []string `json:"Entrypoint"`
		Cmd        []string `json:"Cmd"`
		WorkingDir string   `json:"WorkingDir"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Settings are what a template takes from an image's configuration.
type Settings struct {
	Env map[string]string `json:"env,omitempty"`
	// User is a name or a uid; "" is root. A group in the image's configuration is left out: a user's groups are those
	// of its /etc/group.
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"`
	// Entrypoint is the image's whole command: entry point and its default arguments.
	Entrypoint []string `json:"entrypoint,omitempty"`
}

// maxSettings bounds all texts of the settings together.
const maxSettings = 128 << 10

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

// settings checks what the configuration says. Environment variables whose names no shell can use are left out.
func (c config) settings() (Settings, error) {
	s := Settings{Env: map[string]string{}, Entrypoint: append(append([]string{}, c.Config.Entrypoint...), c.Config.Cmd...)}
	s.User, _, _ = strings.Cut(c.Config.User, ":")
	if s.User == "root" || s.User == "0" {
		s.User = ""
	}
	if c.Config.WorkingDir != "" {
		s.Workdir = path.Clean("/" + c.Config.WorkingDir)
	}
	size := len(s.User) + len(s.Workdir)
	texts := append([]string{s.User, s.Workdir}, s.Entrypoint...)
	for _, pair := range c.Config.Env {
		key, value, ok := strings.Cut(pair, "=")
		if ok && envName.MatchString(key) {
			s.Env[key] = value
			texts = append(texts, value)
		}
		size += len(pair)
	}
	for _, text := range texts {
		size += len(text)
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return Settings{}, refuse("its configuration has text that is not valid: %.100q", text)
		}
	}
	if size > maxSettings {
		return Settings{}, refuse("its configuration has more than %d bytes of settings", maxSettings)
	}
	return s, nil
}
