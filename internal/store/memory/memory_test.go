package memory_test

import (
	"testing"

	"github.com/space-sandbox/space/internal/store"
	"github.com/space-sandbox/space/internal/store/memory"
	"github.com/space-sandbox/space/internal/store/storetest"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store {
		s := memory.New()
		t.Cleanup(func() { s.Close() })
		return s
	})
}
