package sandbox

import (
	"maps"
	"time"
)

// State is where a sandbox is in its life.
type State string

// The states that have landed.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StatePausing  State = "pausing"
	StatePaused   State = "paused"
	StateResuming State = "resuming"
	StateFailed   State = "failed"
	StateDeleting State = "deleting"
	StateDeleted  State = "deleted"
)

// Reasons of StateFailed.
const (
	ReasonCreateFailed  = "create_failed"
	ReasonInterrupted   = "interrupted"     // a create was cut off by a crash
	ReasonVMMExit       = "vmm_exit"        // the VMM ended without being told to
	ReasonOOM           = "oom"             // the host's kernel killed the VMM for its memory limit
	ReasonGuestReboot   = "guest_reboot"    // the guest powered off, rebooted or panicked
	ReasonGuestNotReady = "guest_not_ready" // a recovery was given up before the guest answered
	ReasonHostRestarted = "host_restarted"  // the host booted since the machine ran
)

// ReasonPoolFull is the reason of a StatePaused that node caused: the pool is nearly full, and the machine goes on by
// itself when there is room.
const ReasonPoolFull = "pool_full"

// Expiry is what happens to a sandbox when its lease ends.
type Expiry string

// The expiries that have landed.
const (
	ExpireDelete Expiry = "delete"
	ExpirePause  Expiry = "pause"
)

// Bounds of a lease.
const (
	MinLease = time.Second
	MaxLease = 30 * 24 * time.Hour
)

// Lease bounds how long a sandbox runs. Its time passes while the sandbox is running or failed, and stands still while
// it is created, paused, or on its way between.
type Lease struct {
	TTL      time.Duration // what was asked for
	OnExpiry Expiry
	// ExpiresAt is when it ends, by the host's wall clock; zero while its time stands still.
	ExpiresAt time.Time
	// Remaining is what is left while its time stands still.
	Remaining time.Duration
}

// LeasePasses reports whether the time of a lease passes in this state.
func (s State) LeasePasses() bool { return s == StateRunning || s == StateFailed }

// Start lets the time of l pass from now on; when it does already, nothing changes.
func (l *Lease) Start(now time.Time) {
	if l.ExpiresAt.IsZero() {
		l.ExpiresAt, l.Remaining = now.UTC().Add(l.Remaining), 0
	}
}

// Stop lets the time of l stand still from now on; when it does already, nothing changes.
func (l *Lease) Stop(now time.Time) {
	if !l.ExpiresAt.IsZero() {
		l.ExpiresAt, l.Remaining = time.Time{}, max(0, l.ExpiresAt.Sub(now))
	}
}

// Left is how much of l is left: nothing when it has ended.
func (l *Lease) Left(now time.Time) time.Duration {
	if l.ExpiresAt.IsZero() {
		return l.Remaining
	}
	return max(0, l.ExpiresAt.Sub(now))
}

// Move follows a sandbox from one state to another, now: time begins to pass, or stands still. A lease of which nothing
// is left begins anew when time begins to pass, unless its own pause has just failed.
func (l *Lease) Move(from, to State, now time.Time) {
	switch {
	case from == to:
	case !to.LeasePasses():
		l.Stop(now)
	default:
		if l.Left(now) == 0 && l.ExpiresAt.IsZero() && from != StatePausing {
			l.Remaining = l.TTL
		}
		l.Start(now)
	}
}

// Limits of a specification.
const (
	MinVCPUs     = 1
	MaxVCPUs     = 32
	MinMemoryMiB = 128
	MaxMemoryMiB = 262144
	MinDiskMiB   = 64
	MaxDiskMiB   = 1 << 20

	DefaultVCPUs     = 1
	DefaultMemoryMiB = 512
	DefaultDiskMiB   = 4096
)

// TemplateRef says what a sandbox was made from: the name that was asked for and the content it stood for then.
type TemplateRef struct {
	Ref    string // "base:latest", or the digest when asked by digest
	Digest string // sha256:…
}

// Spec is what a caller asks for. Zero VCPUs, MemoryMiB and DiskMiB mean the defaults.
type Spec struct {
	Template  string // name, name:tag or digest
	Name      string // optional
	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	Driver    string // optional: qemu, firecracker, fake
	Env       map[string]string
	Metadata  map[string]string
	Lease     *Lease // optional; TTL and OnExpiry
}

// Sandbox is the durable record of one sandbox. Desired and observed state are separate fields: State is what was
// last observed, DesiredState what the last accepted verb wants.
type Sandbox struct {
	ID           ID
	Name         string // "" when it has none
	State        State
	DesiredState State
	Reason       string // why it failed, or is paused without having been asked to
	Detail       string // what is known about that: exit status, last console lines
	Template     TemplateRef
	Driver       string
	Isolation    string // microvm/kvm, microvm/emulated, none; known when it runs
	VCPUs        int
	MemoryMiB    int
	DiskMiB      int
	Env          map[string]string
	Metadata     map[string]string
	Lease        *Lease // nil: none
	Generation   int64  // counts the machines this sandbox has had
	AgentToken   string // 64 hex digits; opens the agent of the current generation
	Owner        string // id of the key that created it
	CreatedAt    time.Time
	ReadyAt      time.Time   // zero until ready
	DeletedAt    time.Time   // zero until deleted
	OperationID  OperationID // the operation under way, "" for none
	Revision     int64       // counts the changes of this record; kept by the store
}

// Clone returns a deep copy.
func (s Sandbox) Clone() Sandbox {
	s.Env = maps.Clone(s.Env)
	s.Metadata = maps.Clone(s.Metadata)
	if s.Lease != nil {
		lease := *s.Lease
		s.Lease = &lease
	}
	return s
}

// Live reports whether the sandbox still counts for names and lists without a state filter.
func (s Sandbox) Live() bool { return s.State != StateDeleted }

// Template is the record of one template's content.
type Template struct {
	Digest     string   // sha256:…
	Names      []string // "base:latest"
	SizeBytes  int64
	MinDiskMiB int
	Env        map[string]string
	User       string // "" is root
	Workdir    string
	Entrypoint []string
	CreatedAt  time.Time
}
