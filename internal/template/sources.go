package template

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// release is the Debian release that templates are made of.
const release = "bookworm"

// source is one archive line: where packages come from and what their lists are signed with.
type source struct {
	uri        string
	suite      string
	components []string
	signedBy   string // path of a keyring; "" for apt's own
}

func (s source) line() string {
	option := ""
	if s.signedBy != "" {
		option = "[signed-by=" + s.signedBy + "] "
	}
	return "deb " + option + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// hostSources reads the host's own apt configuration below etc (a view of /etc/apt), so that mirrors and keyrings chosen
// for this host are used for templates as well. Only lines of the Debian release are taken.
func hostSources(etc fs.FS) ([]source, error) {
	var all []source
	files := []string{"sources.list"}
	for _, pattern := range []string{"sources.list.d/*.list", "sources.list.d/*.sources"} {
		found, err := fs.Glob(etc, pattern)
		if err != nil {
			return nil, fmt.Errorf("apt sources: %w", err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		data, err := fs.ReadFile(etc, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("apt sources: %w", err)
		}
		if path.Ext(name) == ".sources" {
			all = append(all, parseDeb822(string(data))...)
		} else {
			all = append(all, parseList(string(data))...)
		}
	}
	all = slices.DeleteFunc(all, func(s source) bool { return !ofRelease(s) })
	if !slices.ContainsFunc(all, func(s source) bool { return s.suite == release }) {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "no package source for Debian " + release,
			Cause:  "/etc/apt/sources.list and sources.list.d have no line for the suite " + release,
			Remedy: "add one, or take ready-made templates: space setup --assets DIR"}
	}
	return all, nil
}

// ofRelease keeps the suites of the release itself; others on the host (vendors, backports) are not part of a template.
func ofRelease(s source) bool {
	switch s.suite {
	case release, release + "-updates", release + "-security", release + "/updates":
	default:
		return false
	}
	if !slices.Contains(s.components, "main") {
		return false
	}
	return strings.HasPrefix(s.uri, "http://") || strings.HasPrefix(s.uri, "https://") || strings.HasPrefix(s.uri, "file:") ||
		strings.HasPrefix(s.uri, "mirror")
}

// parseList reads the one-line form: deb [options] uri suite component…
func parseList(text string) []source {
	var out []source
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		line, _, _ := strings.Cut(scan.Text(), "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		s := source{}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			var options string
			if options, rest, ok = strings.Cut(rest[1:], "]"); !ok {
				continue
			}
			for _, o := range strings.Fields(options) {
				if key, value, _ := strings.Cut(o, "="); strings.EqualFold(key, "signed-by") && strings.HasPrefix(value, "/") {
					s.signedBy = value
				}
			}
		}
		if fields := strings.Fields(rest); len(fields) >= 3 {
			s.uri, s.suite, s.components = fields[0], fields[1], fields[2:]
			out = append(out, s)
		}
	}
	return out
}

// parseDeb822 reads the stanza form. Keys embedded in Signed-By are left out: apt's own keyring has Debian's.
func parseDeb822(text string) []source {
	var out []source
	var fields map[string]string
	flush := func() {
		out = append(out, stanzaSources(fields)...)
		fields = map[string]string{}
	}
	flush()
	for scan := bufio.NewScanner(strings.NewReader(text)); scan.Scan(); {
		line := scan.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t': // continued value: only embedded keys use it
		default:
			if key, value, ok := strings.Cut(line, ":"); ok {
				fields[strings.ToLower(key)] = strings.TrimSpace(value)
			}
		}
	}
	flush()
	return out
}

func stanzaSources(fields map[string]string) []source {
	if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(fields["enabled"], "no") {
		return nil
	}
	signedBy := fields["signed-by"]
	if !strings.HasPrefix(signedBy, "/") {
		signedBy = ""
	}
	var out []source
	for _, uri := range strings.Fields(fields["uris"]) {
		for _, suite := range strings.Fields(fields["suites"]) {
			out = append(out, source{uri: uri, suite: suite, components: strings.Fields(fields["components"]), signedBy: signedBy})
		}
	}
	return out
}
