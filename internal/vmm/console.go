package vmm

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxConsole bounds what Machine.Console and Exit.Detail return, in bytes.
const MaxConsole = 4 << 10

// ConsoleText makes the newest part of what a guest wrote safe to print: at most MaxConsole bytes of UTF-8 without
// control characters but newline and tab, so that no terminal or log obeys the guest.
func ConsoleText(raw []byte) string {
	if len(raw) > 2*MaxConsole {
		raw = raw[len(raw)-2*MaxConsole:]
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == utf8.RuneError:
			return '?'
		case unicode.IsPrint(r):
			return r
		}
		return -1
	}, string(raw))
	for len(clean) > MaxConsole {
		_, size := utf8.DecodeRuneInString(clean)
		cut := max(size, len(clean)-MaxConsole)
		for cut < len(clean) && !utf8.RuneStart(clean[cut]) {
			cut++
		}
		clean = clean[cut:]
	}
	return clean
}
