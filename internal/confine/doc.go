// Package confine is how any helper process is started, limited and ended: its own uid, a control group (v1 or v2),
// no_new_privs, landlock, empty namespaces, and a pidfd so that a reused pid is never signalled.
package confine

// Identity finds a process again after our own death, and only that one. It is JSON in node's state files.
type Identity struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat, clock ticks since boot
	BootID    string `json:"boot_id"`    // /proc/sys/kernel/random/boot_id
	UID       uint32 `json:"uid"`
	Cgroup    string `json:"cgroup,omitempty"` // name of its Group
}

// Group is a control group made by this package.
type Group struct{}
