package vmm_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/space-sandbox/space/internal/vmm"
)

func TestConsoleText(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                "",
		"plain\n\ttext é\r\n":             "plain\n\ttext é\n",
		"\x1b[2J\x1b]0;owned\x07\x00 x":   "[2J]0;owned x",
		"\xff\xfe":                        "??",
		strings.Repeat("a", 9000) + "end": strings.Repeat("a", vmm.MaxConsole-3) + "end",
	} {
		if got := vmm.ConsoleText([]byte(raw)); got != want {
			t.Errorf("%.40q: %.40q", raw, got)
		}
	}
}

func TestConsoleTextIsAlwaysSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), 0, 3*vmm.MaxConsole).Draw(t, "raw")
		text := vmm.ConsoleText(raw)
		if len(text) > vmm.MaxConsole || !utf8.ValidString(text) {
			t.Fatalf("%d bytes", len(text))
		}
		for _, r := range text {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q", r)
			}
		}
	})
}
