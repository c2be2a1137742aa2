package main

// escapes finds the key sequence Enter ~ . in what is typed, as ssh has it: it leaves the session. Enter ~ ~ types one ~.
// Everything else passes as it is.
type escapes struct {
	lineStart bool // nothing has been typed since the last Enter
	tilde     bool // a ~ at the start of a line is held back
}

func newEscapes() *escapes { return &escapes{lineStart: true} }

// filter returns what of the typed bytes is for the session, and whether the session is to be left after them.
func (e *escapes) filter(typed []byte) (out []byte, leave bool) {
	out = make([]byte, 0, len(typed)+1)
	for _, c := range typed {
		switch {
		case e.tilde && c == '.':
			return out, true
		case e.tilde:
			e.tilde = false
			out = append(out, '~')
			if c == '~' {
				e.lineStart = false
				continue
			}
		case e.lineStart && c == '~':
			e.tilde = true
			continue
		}
		e.lineStart = c == '\r' || c == '\n'
		out = append(out, c)
	}
	return out, false
}
