package linuxnet_test

import (
	"log/slog"
	"testing"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/linuxnet"
)

func BenchmarkCreateDelete(b *testing.B) {
	m, err := linuxnet.New(linuxnet.Config{InstallationID: "bench1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	id := sandbox.NewID()
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
