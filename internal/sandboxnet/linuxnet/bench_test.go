package linuxnet_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
)

func BenchmarkCreateDelete(b *testing.B) {
	m, id := newManager(b, installationID()), sandbox.NewID()
	for b.Loop() {
		box, err := m.Create(b.Context(), id)
		if err != nil {
			b.Fatal(err)
		}
		box.Close()
		if err := m.Delete(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}
