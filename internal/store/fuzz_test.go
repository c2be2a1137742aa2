package store

import (
	"testing"
	"time"
)

// A cursor comes back from clients, changed or not.
func FuzzParseCursor(f *testing.F) {
	f.Add(Position{CreatedAt: time.Unix(1, 2), ID: "op_x"}.Cursor())
	for _, s := range []string{"", "e30", "eyJ0IjoxfQ", "eyJ0IjoxLCJpIjoieCJ9", "!", "bnVsbA"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, ok, err := ParseCursor(text)
		switch {
		case err != nil:
			if ok || p != (Position{}) {
				t.Errorf("an error and %+v", p)
			}
		case text == "":
			if ok {
				t.Error("the start of the list is a position")
			}
		case !ok || p.ID == "" || len(text) > maxCursor:
			t.Errorf("%q was accepted as %+v", text, p)
		default:
			again, _, err := ParseCursor(p.Cursor())
			if len(p.Cursor()) <= maxCursor && (err != nil || !again.CreatedAt.Equal(p.CreatedAt) || again.ID != p.ID) {
				t.Errorf("%+v became %+v, %v", p, again, err)
			}
		}
	})
}
