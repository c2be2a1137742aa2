// Package fake runs the agent on the host itself: no virtual machine, no isolation. It is for tests and for trying out
// the API where no machine can run, and refuses to work unless it is allowed by name (SPACE_ALLOW_FAKE=1).
//
// Commands and files act as the machine's uid and no other. Each machine has a temporary directory that holds its home
// directory and its own user database, in which root and user stand for that one uid. Mounts, clock, host name, reboot
// and other users are out of its reach. The agent listens on AgentSocketName in the machine's RunDir.
//
// A paused machine's processes are stopped by signals, so a command that had stopped by itself goes on after a resume;
// clocks go on, also those of the agent. An agent inside this process is paused by its connections, which neither take
// nor give a byte. Without root only the agent is paused: its commands have our own uid.
//
// There are two ways to run the agent: as a process of its own, which outlives node as a real machine does, and inside
// this process, which is fastest and lives as long as its Host.
package fake
