package main

import (
	"os/exec"

	"golang.org/x/sys/unix"
)

// ownGroup makes cmd the first process of a group, as a terminal's foreground job is.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} }

// interrupt does what Ctrl-C does: the signal goes to the whole group.
func interrupt(cmd *exec.Cmd) error {
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
		return unix.Kill(-cmd.Process.Pid, unix.SIGINT)
	}
	return unix.Kill(cmd.Process.Pid, unix.SIGINT)
}
