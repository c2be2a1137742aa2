package vmm

import (
	"testing"
	"unicode"
	"unicode/utf8"
)

// A guest's console never gets anything into a log or a terminal but printable text.
func FuzzConsoleText(f *testing.F) {
	for _, s := range []string{"hello\n", "\x1b[2J\x1b]0;title\x07", "\xff\xfe", "a\r\nb\tc", "\u202eabc", "\u0000"} {
		f.Add([]byte(s), uint16(1))
	}
	f.Fuzz(func(t *testing.T, piece []byte, times uint16) {
		var raw []byte
		for range min(int(times), 4*MaxConsole/max(len(piece), 1)) {
			raw = append(raw, piece...)
		}
		out := ConsoleText(raw)
		if len(out) > MaxConsole || !utf8.ValidString(out) {
			t.Errorf("%d bytes of text", len(out))
		}
		for _, r := range out {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q is in it", r)
			}
		}
	})
}
