package control

import (
	"math"
	"strings"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Bounds of a command: what execve can take, less room for what the guest adds.
const (
	maxArgs           = 4096
	maxCommandBytes   = 1 << 20
	maxArgBytes       = 128<<10 - 1 // Linux's MAX_ARG_STRLEN, with the final NUL
	maxTimeoutSeconds = 30 * 24 * 3600
	maxTagBytes       = 256
)

// checkCommand refuses what no guest could run.
func checkCommand(spec sandbox.CommandSpec) error {
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return invalid("argv", "must name a program")
	}
	if len(spec.Argv) > maxArgs {
		return invalid("argv", "has too many arguments")
	}
	total := 0
	for _, arg := range spec.Argv {
		total += len(arg) + 1
		if strings.ContainsRune(arg, 0) || len(arg) > maxArgBytes {
			return invalid("argv", "has an argument with NUL or of more than 128 KiB")
		}
	}
	for k, v := range spec.Env {
		total += len(k) + len(v) + 2
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) || len(k)+len(v) >= maxArgBytes {
			return invalid("env", "has a name that is empty or has = or NUL, a value with NUL, or one of more than 128 KiB")
		}
	}
	if total > maxCommandBytes {
		return invalid("argv", "and env have more than 1 MiB together")
	}
	if strings.ContainsRune(spec.Cwd+spec.User+spec.Tag, 0) || len(spec.Cwd) > 4096 || len(spec.User) > 256 {
		return invalid("cwd", "user and tag must not have NUL and must not be longer than the guest allows")
	}
	if len(spec.Tag) > maxTagBytes {
		return invalid("tag", "may have at most 256 bytes")
	}
	if spec.PTY != nil && (spec.PTY.Cols == 0 || spec.PTY.Rows == 0) {
		return invalid("pty", "must have 1 to 65535 cols and rows")
	}
	if t := spec.TimeoutSeconds; math.IsNaN(t) || t < 0 || t > maxTimeoutSeconds {
		return invalid("timeout_seconds", "must be 0 (none) to 2592000 (30 days)")
	}
	return nil
}
