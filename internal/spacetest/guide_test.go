package spacetest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/space-sandbox/space/internal/spacetest"
)

// block is a fenced block of a document.
type block struct {
	line     int
	language string
	text     string
}

func blocks(t *testing.T, name string) []block {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	open := false
	for i, line := range strings.SplitAfter(string(data), "\n") {
		language, fence := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "```")
		switch {
		case fence && !open:
			out = append(out, block{line: i + 1, language: language})
			open = true
		case fence:
			open = false
		case open:
			out[len(out)-1].text += line
		}
	}
	return out
}

// expected makes a pattern of an output block: … stands for anything on the line, and for lines at its beginning or end.
func expected(text string) *regexp.Regexp {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSuffix(line, "\n")), "…", `[\s\S]*`))
	}
	return regexp.MustCompile(`^` + strings.Join(lines, `\r?\n?[\r\n]*`) + `\s*$`)
}

// TestGuide runs every block of docs/api-guide.md against an installation: the shell's in one shell, Go programs each by
// itself, and compares what they print with the output block that follows.
func TestGuide(t *testing.T) {
	t.Parallel()
	i := spacetest.Start(t)
	all := blocks(t, "../../docs/api-guide.md")
	dir := t.TempDir()
	env := append(os.Environ(), "SPACE_URL="+i.Client.BaseURL, "SPACE_API_KEY="+i.Key)
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	printed := map[int]string{} // by block
	for n, b := range all {
		text := strings.ReplaceAll(b.text, `"base"`, `"tiny"`)
		switch b.language {
		case "sh":
			fmt.Fprintf(&script, "exec >%s/%d\n%s\n", dir, n, text)
		case "go":
			printed[n] = runGo(t, filepath.Join(dir, "main.go"), text, env)
		case "output":
			if n == 0 || all[n-1].language == "output" {
				t.Errorf("line %d: output of what?", b.line)
			}
		default:
			t.Errorf("line %d: a block of language %q", b.line, b.language)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-s")
	cmd.Env, cmd.Stdin = env, strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	for n, b := range all {
		if b.language == "output" {
			continue
		}
		got, isGo := printed[n]
		if !isGo {
			data, err := os.ReadFile(fmt.Sprintf("%s/%d", dir, n))
			if err != nil {
				t.Fatalf("the block of line %d did not run: %v", b.line, err)
			}
			got = string(data)
		}
		if n+1 >= len(all) || all[n+1].language != "output" {
			t.Errorf("line %d: nothing says what is to come out", b.line)
		} else if !expected(all[n+1].text).MatchString(got) {
			t.Errorf("line %d: want\n%s\ngot\n%s", b.line, all[n+1].text, got)
		}
	}
}

func runGo(t *testing.T, name, text string, env []string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", name)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
