// Package confine is how any helper process is started, limited and ended: its own uid, a control group (v1 or v2),
// no_new_privs, landlock, empty namespaces, and a pidfd so that a reused pid is never signalled.
//
// Start needs no helper program: it takes an OS thread of its own, gives that thread the attributes the child shall
// have (a child inherits those of the thread that forks it), forks from it, and throws the thread away.
package confine

// Identity finds a process again after our own death, and only that one. It is JSON in node's state files.
type Identity struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat, clock ticks since boot
	BootID    string `json:"boot_id"`    // /proc/sys/kernel/random/boot_id
	UID       uint32 `json:"uid"`
	Cgroup    string `json:"cgroup,omitempty"` // path of its Group: space-<installation>/<name>
}
