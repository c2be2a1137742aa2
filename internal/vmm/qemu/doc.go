// Package qemu runs machines in QEMU's microvm: the driver that works on any Linux host, with KVM where KVM really
// works and by emulation where it does not.
//
// A machine is one QEMU process with a uid of its own, no capabilities, seccomp, landlock, empty namespaces and a
// private /dev. Of the host's files it sees /usr and its like, and none of its services' sockets. It opens no path that a guest could choose: kernel, initrd, memory, disk, tap and the control socket
// are descriptors. Its control socket (QMP) listens in the machine's RunDir, so it can be reached again after node's
// death. The serial console goes to a ring of 64 KiB inside QEMU: a guest cannot fill the host's disk with it.
//
// When a guest powers off, reboots or panics, QEMU stops but stays, so that its console can still be read; the driver
// then ends it. If node is away meanwhile, that happens at Adopt.
package qemu
