// Package guestos makes what every guest boots: a distribution's own kernel, as an uncompressed ELF file that all VMMs
// can load, and an initramfs with the agent and the few modules it needs to find its disk and its network.
//
// Build is called by setup, with the distribution's kernel package as a file; nothing is installed on the host. Open
// is called by node, which gives each machine the same kernel and a copy of the initramfs with the machine's own boot
// configuration behind it (package bootconf).
package guestos
