package pool

import (
	"context"
	"os"
	"os/exec"
	"strings"
)

// LoopReason says why a loop-xfs pool is not possible here, "" when it is. It loads kernel modules when it may.
func LoopReason(ctx context.Context) string {
	for _, need := range []struct{ module, path, text string }{
		{"loop", "/dev/loop-control", ""}, {"xfs", "/proc/filesystems", "\txfs\n"},
	} {
		if !fileHas(need.path, need.text) {
			// The answer is in the second look, not in modprobe's.
			exec.CommandContext(ctx, "modprobe", need.module).Run() //nolint:errcheck // see above
			if !fileHas(need.path, need.text) {
				return "this kernel has no " + need.module
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
