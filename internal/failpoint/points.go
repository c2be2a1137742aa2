// Package failpoint marks the durable steps of every operation, so that tests can end a process exactly there.

// In the program that users run Hit is an empty function. Built with the tag failpoints, it asks the file that the
// environment names whether its point is armed; the process that reaches an armed point ends itself with SIGKILL, as
// after a power cut: nothing is flushed, closed or cleaned up.
package failpoint

// Name is a point: what has just become durable, and in which room. Those of the engine are reached by operations of
// every kind.
type Name string

// The engine of operations, in control.
const (
	OperationAccepted Name = "operation accepted" // in the record; the client has no answer yet
	OperationBegins   Name = "operation begins"   // its turn has come; nothing of that is in the record
	OperationClaimed  Name = "operation claimed"  // the resource has been moved, nothing has been done
	OperationEnds     Name = "operation ends"     // all is done, the end is not in the record
	OperationEnded    Name = "operation ended"    // it is; nobody has been told
)

// Steps of control: each has been done by node or the gateway.
const (
	LeaseEnds      Name = "lease ends" // a lease has been found to be over; nothing has been accepted
	MachineEnsured Name = "machine ensured"
	GuestReady     Name = "guest ready"
	RoutePublished Name = "route published"
	RouteHeld      Name = "route held"
	MachinePaused  Name = "machine paused"
	MachineResumed Name = "machine resumed"
	RouteRemoved   Name = "route removed"
	MachineRemoved Name = "machine removed"
)

// Steps of node.
const (
	RecordStaged     Name = "record staged" // the new record lies beside the old one
	RecordMaking     Name = "record making" // a machine is to be made, nothing of it exists
	DiskMade         Name = "disk made"     // or opened, for a recovery
	NetworkMade      Name = "network made"  // beside the disk, in either order
	DirectoryMade    Name = "directory made"
	GroupMade        Name = "group made"
	TapMade          Name = "tap made"        // the last part before the VMM
	ProcessStarted   Name = "process started" // the VMM runs, its driver has not been told
	MachineStarted   Name = "machine started" // the driver has it, the record does not
	RecordRunning    Name = "record running"  // the record has it, control does not
	WishWritten      Name = "wish written"    // the record says pause or resume, the VMM does not know
	MachineObeyed    Name = "machine obeyed"  // the vCPUs do it
	RecordDeleting   Name = "record deleting"
	MachineKilled    Name = "machine killed"
	NetworkRemoved   Name = "network removed"
	GroupRemoved     Name = "group removed"
	DirectoryRemoved Name = "directory gone"
	DiskRemoved      Name = "disk removed"    // the last part
	RecordRemoved    Name = "record removed"  // node knows nothing any more, control does not know that
	RecordExited     Name = "record exited"   // a machine has ended by itself; its network and directory exist
	MachineAdopted   Name = "machine adopted" // a node that starts has found a machine
	ExitFound        Name = "exit found"      // a node that starts has found that one has ended
	HalfMadeFound    Name = "half made found" // a node that starts has found a machine to be removed
)

// Steps of the gateway.
const (
	GuestGreeted   Name = "guest greeted"   // it has its name, clock and entropy
	RoutePut       Name = "route put"       // published or held
	RouteTaken     Name = "route taken"     // unpublished
	RoutesReplaced Name = "routes replaced" // all of them, for a control that has started
)

// All lists every point.
func All() []Name {
	return []Name{
		OperationAccepted, OperationBegins, OperationClaimed, OperationEnds, OperationEnded,
		LeaseEnds, MachineEnsured, GuestReady, RoutePublished, RouteHeld, MachinePaused, MachineResumed, RouteRemoved, MachineRemoved,
		RecordStaged, RecordMaking, DiskMade, NetworkMade, DirectoryMade, GroupMade, TapMade, ProcessStarted, MachineStarted, RecordRunning,
		WishWritten, MachineObeyed, RecordDeleting, MachineKilled, NetworkRemoved, GroupRemoved, DirectoryRemoved, DiskRemoved, RecordRemoved,
		RecordExited, MachineAdopted, ExitFound, HalfMadeFound,
		GuestGreeted, RoutePut, RouteTaken, RoutesReplaced,
	}
}
