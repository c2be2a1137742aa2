//go:build realvm

package machine_test

import (
	"testing"
	"time"
)

// TestEmptyImageBoots boots an image with nothing in it at all.
func TestEmptyImageBoots(t *testing.T) {
	t.Parallel()
	started := time.Now()
	g := boot(t, guestSpec{memoryMiB: 256, image: t.TempDir(), imageMiB: 64, diskMiB: 1024})
	hello := g.waitReady(t)
	t.Logf("ready after %v", time.Since(started))
	for _, s := range hello.Stages {
		t.Logf("%-8s %7.1f ms", s.Name, s.Ms)
	}
	if hello.BootId == "" {
		t.Error("Hello has no boot id")
	}
}
