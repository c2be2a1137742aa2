package guestos

import "strings"

// KernelArgs is the part of the guest kernel's command line that all drivers share; a driver adds what its machine
// needs (reboot=, pci=, tsc_early_khz=). No secret is ever in it.
func KernelArgs() string {
	return strings.Join([]string{
		"console=ttyS0", // a VMM keeps the newest part of it
		"quiet",
		"panic=-1",          // the end of the agent, or a fault of the kernel, is the end of the machine
		"no_timer_check",    // under emulation the timer stutters
		"cryptomgr.notests", // the self-tests of ciphers take a seventh of an emulated boot
		"random.trust_cpu=on",
	}, " ")
}
