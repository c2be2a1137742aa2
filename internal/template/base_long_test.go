//go:build long

package template

import (
	"strings"
	"testing"
	"time"
)

func TestBuildBase(t *testing.T) {
	started := time.Now()
	m, image := build(t, base())
	t.Logf("base: %d bytes in %v", m.SizeBytes, time.Since(started))
	checkImage(t, image)
	for _, program := range []string{"bash", "sudo", "python3", "python", "pip", "node", "npm", "git", "curl", "gcc", "make", "ps"} {
		if got := debugfs(t, image, "stat /usr/bin/"+program); !strings.Contains(got, "Inode:") {
			t.Errorf("no %s", program)
		}
	}
	if got := debugfs(t, image, "stat /etc/sudoers.d/user"); !strings.Contains(got, "Mode:  0440") {
		t.Errorf("sudoers:\n%s", got)
	}
}
