// Package vmm is the contract between node and the programs that run microVMs. A Driver makes machines; a Machine is
// one running VMM process with one guest in it. Drivers live in sub-packages (qemu, fake) and all pass the one suite
// in vmmtest.
//
// Terms. *Boot* starts a VMM on an empty machine and returns when the vCPUs run: the guest is not ready yet, and
// nobody here ever talks to it. *State* is what node writes down so that, after its own death, *Adopt* finds the same
// process again and no other. *Exit* is how a machine ended.
//
// Promises every driver keeps:
//   - A failed Boot leaves no process, socket or file of its own behind.
//   - Machines outlive the process that booted them: they are in a session of their own and hold no pipe of ours.
//   - Files in a Spec stay the caller's: the driver duplicates what it passes on; the caller closes its own.
//   - Kill is idempotent, returns when the process is gone and reaped, and never signals a reused pid (pidfd).
//   - Wait may be called by many; all get the same Exit.
//   - Whether the vCPUs run changes only by Pause and Resume, and when the VMM stops them itself because the host failed
//     its disk. Adopt leaves it as it is: who adopts a machine calls one of the two.
//   - What a VMM answers is bounded (64 KiB, with deadlines): the VMM may have been taken over by its guest.
package vmm

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
)

// ErrGone is returned by Adopt when the machine does not exist any more (or its pid now belongs to another process), and
// by Pause and Resume when it has ended.
var ErrGone = errors.New("the machine is gone")

// Isolation of a driver on this host, as it is told to users.
const (
	IsolationKVM      = "microvm/kvm"
	IsolationEmulated = "microvm/emulated"
	IsolationNone     = "none"
)

// What a machine's control group may use over what the guest is given.
const (
	memoryOverheadMiB = 768 // the VMM itself; with emulation mostly QEMU's cache of translated code
	cpuOverhead       = 1   // the VMM's own threads beside the vCPUs
	pidLimit          = 256 // QEMU's I/O pool alone may have 64 threads
)

// Limits are those of the control group of a machine.
func Limits(vcpus, memoryMiB int) confine.Limits {
	return confine.Limits{MemoryBytes: int64(memoryMiB+memoryOverheadMiB) << 20, CPUQuota: float64(vcpus + cpuOverhead), PIDs: pidLimit}
}

// Driver runs machines of one kind. Safe for concurrent use.
type Driver interface {
	// Name is what a request and a record say: "qemu", "firecracker", "fake".
	Name() string
	// Probe finds out what really works on this host. It may take seconds; callers keep the answer.
	Probe(ctx context.Context) Probe
	// Boot starts a machine. The context bounds Boot alone, not the machine.
	Boot(ctx context.Context, spec Spec) (Machine, error)
	// Adopt takes over a machine that an earlier process booted, by what its State() said. ErrGone when it ended.
	Adopt(ctx context.Context, state State) (Machine, error)
}

// Sweeper is a Driver that makes files which no State may tell of: a process that starts a machine can end before it has
// written one down.
type Sweeper interface {
	// Sweep removes what a machine that has ended may have left. It may be called again.
	Sweep(ctx context.Context, id sandbox.ID) error
}

// Probe says what a driver can do on this host.
type Probe struct {
	Available bool
	Isolation string // one of the Isolation constants
	Version   string // of the VMM, as it says itself
	Reason    string // when not available: why, and what would help; when emulated: why there is no KVM
}

// Spec is everything a machine is made of. Node makes the parts; the driver only connects them.
type Spec struct {
	ID         sandbox.ID
	Generation int64
	VCPUs      int
	MemoryMiB  int

	Kernel     *os.File // uncompressed vmlinux, read-only
	Initrd     *os.File // initramfs with the machine's boot configuration appended, read-only
	KernelArgs string   // the part common to all drivers; a driver adds its own
	RAM        *os.File // exactly MemoryMiB long, read-write; mapped shared
	Disk       *os.File // raw root disk, read-write
	Tap        *os.File // opened IFF_TAP|IFF_NO_PI|IFF_VNET_HDR in the sandbox's namespace; nil for the fake
	GuestMAC   string
	// AgentToken opens the agent, for drivers that boot no Initrd (the fake). Others find it in there and ignore this.
	AgentToken string

	// RunDir is a private directory of node for the sockets of this machine (0700, root, short enough for a socket
	// path). The driver removes only what it made in it.
	RunDir string
	// UID and GID are the machine's own; no other process has them.
	UID, GID uint32
	// Group is the control group the VMM starts in; nil when limits are not wanted (tests of the fake). Its
	// limits are Limits.
	Group *confine.Group
}

// State identifies a running machine across deaths of node. It is JSON in node's state file.
type State struct {
	Driver  string           `json:"driver"`
	Process confine.Identity `json:"process"`
	// Private is the driver's own, for example the path of its control socket.
	Private json.RawMessage `json:"private,omitempty"`
}

// Exit is how a machine ended.
type Exit struct {
	// Reason is one of sandbox.ReasonVMMExit, ReasonOOM, ReasonGuestReboot; "killed" after Kill.
	Reason string
	// Detail is for people: exit status, last console lines; at most 4 KiB of valid UTF-8.
	Detail string
}

// ChangeTime bounds Pause and Resume: it is enough for a busy host to write what a guest's disk still has under way.
const ChangeTime = 10 * time.Second

// ExitKilled is the Reason of an Exit that Kill caused.
const ExitKilled = "killed"

// Machine is one running machine. Safe for concurrent use.
type Machine interface {
	// State is constant over the machine's life.
	State() State
	// Isolation is how this machine is really separated: one of the Isolation constants.
	Isolation() string
	// Wait blocks until the machine has ended or ctx is done.
	Wait(ctx context.Context) (Exit, error)
	// Console returns the newest part of the guest's serial console, at most 4 KiB, cleaned to printable UTF-8.
	// Only for diagnosis: it is what the guest says about itself.
	Console(ctx context.Context) (string, error)
	// Pause stops the vCPUs and returns when they stand still: no instruction of the guest runs, and what its disk was
	// asked to write before is written or waits. Memory, sockets and process stay. Pausing a machine that stands still
	// succeeds. After an error the state is not known, for a VMM may obey late: call one of the two again. ErrGone says
	// that the guest or the VMM has ended, which Wait tells as ever. Both calls are bounded by ctx and by ChangeTime, also
	// with a VMM that does not answer; calls at the same time go one after the other.
	Pause(ctx context.Context) error
	// Resume lets the vCPUs go on and returns when they run. It is the way on from Stalled too: what failed is done again.
	// Resuming a machine that runs succeeds. Errors are those of Pause.
	Resume(ctx context.Context) error
	// Stalled receives when the VMM has stopped the guest by itself because the host had no space for what it wrote: the
	// guest was told nothing and nothing is lost. It stands still until Resume; when there is still no space it stalls
	// again. A machine that is found so by Adopt tells it too. One signal may stand for several; for one receiver. Nil
	// when the driver knows no such thing.
	Stalled() <-chan struct{}
	// Kill ends the machine at once and returns when it is gone, whether it runs, stands still or does not answer.
	Kill(ctx context.Context) error
	// Close releases what this process holds of the machine (descriptors, goroutines); the machine goes on.
	Close() error
}
