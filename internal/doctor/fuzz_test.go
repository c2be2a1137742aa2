package doctor

import (
	"bytes"
	"testing"
)

// However a secret is wrapped, it does not come out.
func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"token":"`), []byte(`"}`))
	f.Add([]byte("Bearer "), []byte("\n"))
	f.Add([]byte(`[{"env":{"`), []byte(`":"x"}}]`))
	f.Add([]byte(`password="`), []byte{})
	const secret = "S3cret-of-the-house"
	r := newRedactor([]string{secret + "\n"})
	f.Fuzz(func(t *testing.T, before, after []byte) {
		data := append(append(bytes.Clone(before), secret...), after...)
		for _, out := range [][]byte{r.text(data), r.json(data)} {
			if bytes.Contains(out, []byte(secret)) {
				t.Errorf("%q became %q", data, out)
			}
		}
	})
}
