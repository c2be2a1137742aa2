package machine

import (
	"os"
	"os/signal"
)

// IgnoreSignals makes this process deaf to signals from other processes: PID 1 ends when it decides to. The kernel
// itself refuses SIGKILL and SIGSTOP for PID 1. Faults of our own still end the process.
func IgnoreSignals() {
	// Asking for a signal is what keeps the runtime from acting on it; nobody reads the channel.
	signal.Notify(make(chan os.Signal, 1))
}
