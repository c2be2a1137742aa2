package pool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/space-sandbox/space/internal/hostprog"
)

// LoopReason says why a loop-xfs pool is not possible here, "" when it is. It loads kernel modules when it may.
func LoopReason(ctx context.Context) string {
	for _, need := range []struct{ module, path, text string }{
		{"loop", "/dev/loop-control", ""}, {"xfs", "/proc/filesystems", "\txfs\n"},
	} {
		if !fileHas(need.path, need.text) {
			err := exec.CommandContext(ctx, hostprog.Path("modprobe"), need.module).Run()
			if !fileHas(need.path, need.text) {
				return fmt.Sprintf("this kernel has no %s (modprobe: %v)", need.module, err)
			}
		}
	}
	return ""
}

func fileHas(path, text string) bool {
	if text == "" {
		_, err := os.Stat(path)
		return err == nil
	}
	data, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(data), text)
}
