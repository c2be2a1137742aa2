package agent

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Bounds of a process specification. The first two are the kernel's own.
const (
	maxArgument  = 128<<10 - 1 // bytes of one argument or NAME=value
	maxArguments = 2 << 20     // bytes of all of them with their pointers
	maxPath      = 4095
	maxUserName  = 256
	maxTimeout   = 365 * 24 * 3600 // seconds
)

// checkSpec refuses what can never be started and says which field is wrong.
func checkSpec(s *agentv1.ProcessSpec) error {
	if s == nil || len(s.Argv) == 0 || s.Argv[0] == "" {
		return badField("argv", "must name a program")
	}
	total := 0
	for i, a := range s.Argv {
		if err := checkText(fmt.Sprintf("argv[%d]", i), a, maxArgument); err != nil {
			return err
		}
		total += len(a) + 9
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return badField("env", fmt.Sprintf("%q is not a name", k))
		}
		if err := checkText("env["+k+"]", k+"="+v, maxArgument); err != nil {
			return err
		}
		total += len(k) + len(v) + 10
	}
	if total > maxArguments {
		return badField("argv", fmt.Sprintf("argv and env together are larger than %d bytes", maxArguments))
	}
	if err := checkText("cwd", s.Cwd, maxPath); err != nil {
		return err
	}
	if err := checkText("user", s.User, maxUserName); err != nil {
		return err
	}
	if s.Pty != nil {
		if err := checkSize("pty", s.Pty); err != nil {
			return err
		}
	}
	if t := s.TimeoutSeconds; math.IsNaN(t) || t < 0 || t > maxTimeout {
		return badField("timeout_seconds", fmt.Sprintf("must be between 0 and %d", maxTimeout))
	}
	return nil
}

func checkText(field, s string, limit int) error {
	if len(s) > limit {
		return badField(field, fmt.Sprintf("is longer than %d bytes", limit))
	}
	if strings.IndexByte(s, 0) >= 0 {
		return badField(field, "contains a NUL byte")
	}
	return nil
}

func badField(field, message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: field + " " + message,
		Remedy: "change the field " + field, Fields: []sandbox.FieldError{{Field: field, Message: message}}}
}

// environment is the environment of a process: its own and what the user database adds when absent.
func environment(spec *agentv1.ProcessSpec, a account) []string {
	all := map[string]string{"HOME": a.home, "USER": a.name, "LOGNAME": a.name, "PATH": defaultPath}
	if spec.Pty != nil {
		all["TERM"] = defaultTerm
	}
	maps.Copy(all, spec.Env)
	list := make([]string, 0, len(all))
	for k, v := range all {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

func timeoutOf(s *agentv1.ProcessSpec) time.Duration {
	return time.Duration(s.TimeoutSeconds * float64(time.Second))
}
