//go:build realvm

package e2e

import (
	"slices"
	"testing"

	"github.com/space-sandbox/space/internal/failpoint"
)

// chain is where processes end, one after another: at the first point, and, when what was started again comes to the
// next one, there.
type chain []failpoint.Name

// life is what happens to one sandbox, with a crash in each part of it. A part whose chain is nil is left out, one with
// an empty chain is done without a crash.
type life struct {
	create, pause, resume, exit, recover, remove chain
	// interrupted: the create ends so, and nothing of it is left.
	interrupted bool
	// leased: the pause or the removal comes from the end of a lease.
	leased bool
}

// engine are the points that operations of every kind reach.
func engine() []failpoint.Name {
	return []failpoint.Name{failpoint.OperationAccepted, failpoint.OperationBegins, failpoint.OperationClaimed,
		failpoint.OperationEnds, failpoint.OperationEnded}
}

// each makes a chain of each name.
func each(names ...failpoint.Name) []chain {
	var all []chain
	for _, n := range names {
		all = append(all, chain{n})
	}
	return all
}

// makes are the points at which node makes a machine.
func makes(qemu bool) []failpoint.Name {
	all := []failpoint.Name{failpoint.RecordStaged, failpoint.RecordMaking, failpoint.DiskMade, failpoint.NetworkMade, failpoint.DirectoryMade,
		failpoint.GroupMade, failpoint.ProcessStarted, failpoint.MachineStarted, failpoint.RecordRunning}
	if qemu { // the fake has no tap
		all = append(all, failpoint.TapMade)
	}
	return all
}

func compute() []failpoint.Name {
	return []failpoint.Name{failpoint.NetworkRemoved, failpoint.GroupRemoved, failpoint.DirectoryRemoved}
}

func createChains(qemu bool) []chain {
	all := each(append(append(makes(qemu), engine()...), failpoint.MachineEnsured, failpoint.GuestGreeted, failpoint.GuestReady, failpoint.RoutePut,
		failpoint.RoutePublished)...)
	return append(all, chain{failpoint.DiskMade, failpoint.HalfMadeFound}, chain{failpoint.RecordRunning, failpoint.MachineAdopted},
		chain{failpoint.MachineEnsured, failpoint.RoutesReplaced}, chain{failpoint.OperationClaimed, failpoint.MachineStarted, failpoint.OperationEnds})
}

// interruptedChains end a create as often as control goes on with one, and the removal of what it has made.
func interruptedChains() []chain {
	often := func(n failpoint.Name) chain { return chain{n, n, n, n, n} }
	return []chain{often(failpoint.OperationClaimed), append(often(failpoint.RoutePublished), failpoint.MachineRemoved),
		append(often(failpoint.MachineEnsured), failpoint.RecordDeleting)}
}

func pauseChains() []chain {
	all := each(append(engine(), failpoint.RouteHeld, failpoint.RoutePut, failpoint.RecordStaged, failpoint.WishWritten,
		failpoint.MachineObeyed, failpoint.MachinePaused)...)
	return append(all, chain{failpoint.WishWritten, failpoint.MachineAdopted}, chain{failpoint.OperationClaimed, failpoint.RoutesReplaced},
		chain{failpoint.OperationClaimed, failpoint.OperationClaimed})
}

func resumeChains() []chain {
	all := each(append(engine(), failpoint.RecordStaged, failpoint.WishWritten, failpoint.MachineObeyed, failpoint.MachineResumed,
		failpoint.GuestGreeted, failpoint.GuestReady, failpoint.RoutePut, failpoint.RoutePublished)...)
	return append(all, chain{failpoint.WishWritten, failpoint.MachineObeyed})
}

func exitChains() []chain {
	return append(each(append(compute(), failpoint.RecordExited)...), chain{failpoint.RecordStaged, failpoint.ExitFound})
}

func recoverChains(qemu bool) []chain {
	all := each(append(append(engine(), makes(qemu)...), failpoint.MachineEnsured, failpoint.GuestGreeted, failpoint.GuestReady,
		failpoint.RoutePut, failpoint.RoutePublished)...)
	return append(all, chain{failpoint.NetworkMade, failpoint.HalfMadeFound}, chain{failpoint.ProcessStarted, failpoint.GroupRemoved})
}

func removeChains() []chain {
	all := each(append(append(engine(), compute()...), failpoint.RouteRemoved, failpoint.RouteTaken, failpoint.RecordStaged, failpoint.RecordDeleting,
		failpoint.MachineKilled, failpoint.DiskRemoved, failpoint.RecordRemoved, failpoint.MachineRemoved)...)
	return append(all, chain{failpoint.RecordDeleting, failpoint.HalfMadeFound}, chain{failpoint.MachineKilled, failpoint.DiskRemoved})
}

// lives puts the crashes of every operation into as few lives as possible.
func lives(qemu bool) []life {
	create, cut, pause, resume := createChains(qemu), interruptedChains(), pauseChains(), resumeChains()
	exit, recovery, remove := exitChains(), recoverChains(qemu), removeChains()
	longest := max(len(create), len(pause), len(resume), len(recovery), len(remove))
	at := func(all []chain, n int) chain {
		if n < len(all) {
			return all[n]
		}
		return chain{}
	}
	var all []life
	for n := range longest {
		all = append(all, life{create: at(create, n), pause: at(pause, n), resume: at(resume, n), exit: at(exit, n), recover: at(recovery, n), remove: at(remove, n)})
	}
	for _, c := range cut {
		all = append(all, life{create: c, interrupted: true, remove: chain{}})
	}
	lease := each(failpoint.LeaseEnds)
	for n, c := range append(lease, pause...) {
		all = append(all, life{create: chain{}, pause: c, leased: true, remove: at(append(lease, remove...), n)})
	}
	for _, c := range append(lease, remove...)[len(pause)+1:] {
		all = append(all, life{create: chain{}, remove: c, leased: true})
	}
	return all
}

// sample is one crash for each process and operation.
func sample() []life {
	return []life{
		{create: chain{failpoint.TapMade}, pause: chain{failpoint.WishWritten}, resume: chain{failpoint.MachineResumed}, remove: chain{failpoint.MachineKilled}},
		{create: chain{failpoint.MachineStarted}, exit: chain{failpoint.RecordExited}, recover: chain{failpoint.GuestGreeted}, remove: chain{failpoint.RecordRemoved}},
		{create: chain{failpoint.GuestReady}, remove: chain{}},
		{create: chain{}, pause: chain{failpoint.MachinePaused}, leased: true, remove: chain{failpoint.RouteRemoved}},
	}
}

// TestNoPointIsForgotten: every point of the list is in the plan.
func TestNoPointIsForgotten(t *testing.T) {
	t.Parallel()
	var planned []failpoint.Name
	for _, l := range lives(true) {
		planned = append(planned, slices.Concat(l.create, l.pause, l.resume, l.exit, l.recover, l.remove)...)
	}
	for _, n := range failpoint.All() {
		if !slices.Contains(planned, n) {
			t.Errorf("nothing crashes at %q", n)
		}
	}
}
