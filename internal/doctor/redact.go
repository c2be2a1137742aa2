package doctor

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

const removed = "[removed]"

// redactor takes out of texts what must not leave the host: secrets that are known by value, whatever looks like one,
// and the values of fields that hold some.
type redactor struct {
	known    *strings.Replacer
	patterns []*regexp.Regexp
}

// newRedactor knows the given secrets by value; short ones are left out, they would blank half of every text.
func newRedactor(secrets []string) *redactor {
	var pairs []string
	for _, s := range secrets {
		if s = strings.TrimSpace(s); len(s) >= 8 {
			pairs = append(pairs, s, removed)
		}
	}
	return &redactor{known: strings.NewReplacer(pairs...), patterns: []*regexp.Regexp{
		regexp.MustCompile(`e2b_[0-9A-Za-z]{8,}`),                          // API keys
		regexp.MustCompile(`space_sbx_[0-9A-Za-z_.-]+`),                    // sandbox tokens
		regexp.MustCompile(`eyJ[0-9A-Za-z_-]{8,}(\.[0-9A-Za-z_-]*){0,2}`),  // attach tokens and other JWTs
		regexp.MustCompile(`(?i)\b(bearer|basic)[ .]+[0-9A-Za-z+/=_.~-]+`), // headers
		regexp.MustCompile(`(?i)\b[\w-]*(token|secret|password|passwd|api[_-]?key|credential)s?["']?\s*[=:]\s*("[^"]*"|'[^']*'|[^\s,;&]+)`),
		regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`),
		regexp.MustCompile(`://[^/\s:@]+:[^/\s@]+@`), // a password in an address
	}}
}

// bareHex are agent tokens, and hashes of keys. A digest says what it is, and may stay.
func bareHex() *regexp.Regexp { return regexp.MustCompile(`(sha256:)?\b[0-9a-fA-F]{64,}\b`) }

// text returns data without what looks like a secret.
func (r *redactor) text(data []byte) []byte {
	out := []byte(r.known.Replace(string(data)))
	for _, p := range r.patterns {
		out = p.ReplaceAll(out, []byte(removed))
	}
	return bareHex().ReplaceAllFunc(out, func(found []byte) []byte {
		if bytes.HasPrefix(found, []byte("sha256:")) {
			return found
		}
		return []byte(removed)
	})
}

// json is text for a JSON document: the values of fields that may hold secrets are taken out first, so that nothing
// depends on how they look. What is no JSON is dealt with as text.
func (r *redactor) json(data []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return r.text(data)
	}
	out, err := json.MarshalIndent(scrub(v), "", "  ")
	if err != nil {
		return []byte(removed)
	}
	return append(r.text(out), '\n')
}

// scrub empties what a user may have put secrets into: environments, metadata, arguments, and fields that say so.
func scrub(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			switch {
			case secretField(key):
				v[key] = blank(value)
			default:
				v[key] = scrub(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = scrub(v[i])
		}
	}
	return v
}

func secretField(key string) bool {
	key = strings.ToLower(key)
	switch key {
	case "env", "environment", "metadata", "argv", "args", "stdin_b64", "stdout", "stderr", "authorization":
		return true
	}
	for _, part := range []string{"token", "secret", "password", "key"} {
		if strings.Contains(key, part) {
			return true
		}
	}
	return false
}

// blank keeps the shape of a value, names of fields included, and no value.
func blank(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = removed
		}
		return v
	case []any:
		out := make([]any, len(v))
		for i := range out {
			out[i] = removed
		}
		return out
	case nil:
		return nil
	}
	return removed
}
