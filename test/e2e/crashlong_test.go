//go:build long && realvm

package e2e

import "testing"

// TestCrashAtEveryStepOnQEMU does with real machines what CI does with the fake.
func TestCrashAtEveryStepOnQEMU(t *testing.T) {
	t.Parallel()
	crashes(t, installation{driver: "qemu"}, 2, lives(true))
}
