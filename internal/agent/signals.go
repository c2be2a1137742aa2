package agent

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// parseSignal accepts the names of POSIX, with their SIG.
func parseSignal(name string) (syscall.Signal, error) {
	switch name {
	case "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1",
		"SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN",
		"SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGSYS":
		return unix.SignalNum(name), nil
	}
	return 0, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the signal is not known",
		Cause: fmt.Sprintf("%.40q", name), Remedy: "use a POSIX name such as SIGTERM, SIGKILL or SIGINT",
		Fields: []sandbox.FieldError{{Field: "signal", Message: "is not a signal's name"}}}
}

// signalName is the inverse of parseSignal; signals without a name there are SIG and their number.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(sig))
}
