package ledger

import (
	"context"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// Stage is what a record says of a machine.
type Stage int

// The stages.
const (
	// None: nothing stands for any object of this owner.
	None Stage = iota
	// Changing: objects are being made or removed. They may exist, and may not.
	Changing
	// Running: the machine has everything; so has one that is paused.
	Running
	// Kept: the machine is gone, its disk and uid are not.
	Kept
)

// Parts is what a running machine of a driver has besides what every machine has.
type Parts struct {
	// Process says that the machine is a process of its own.
	Process bool
	// Family says that the commands of its sandbox are processes of the host with the machine's uid, as with the fake.
	Family bool
	// Sockets are the names of the sockets in its run directory; nil when that is not known.
	Sockets []string
}

// Machine is what the journal says of one owner.
type Machine struct {
	Stage   Stage
	UID     uint32           // unless None
	Process confine.Identity // when Running and Parts.Process
	Parts   Parts
	Box     sandboxnet.Manager // that made its network, when Running
}

func (m Machine) same(o Machine) bool {
	return m.Stage == o.Stage && m.UID == o.UID && m.Process == o.Process
}

// Snapshot is what the journal says at one moment. An owner that it does not have is at None.
type Snapshot struct {
	Owners map[string]Machine
	// UIDs are the uids that are not free, with their owners.
	UIDs map[uint32]string
}

// Journal is what stands for objects. Safe for concurrent use.
type Journal interface {
	Snapshot() Snapshot
	// Hold runs fn with what the journal says of an owner, while nothing of that owner changes. It does not wait: when
	// somebody is at it, fn is not run and busy is true.
	Hold(owner string, fn func(Machine) error) (busy bool, err error)
	// Reap removes every object of an owner that its record does not stand for: all when there is no record. It is
	// called within Hold, with what Hold said.
	Reap(ctx context.Context, owner string, m Machine) error
	// Claim keeps a uid from being given to a machine until release; false when it is not free.
	Claim(uid uint32) (release func(), ok bool)
}
