package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// places are the directories of an installation, as the kernel names them: without symbolic links.
type places struct {
	pool, sandboxes, staging, image, machines, run, vm string
}

func findPlaces(dir *datadir.Dir) places {
	at := places{pool: real(dir.PoolDir()), image: filepath.Join(real(filepath.Dir(dir.PoolImage())), filepath.Base(dir.PoolImage())),
		machines: real(dir.MachinesDir()), run: real(dir.RunDir())}
	at.sandboxes, at.staging, at.vm = filepath.Join(at.pool, "sandboxes"), filepath.Join(at.pool, "staging"), filepath.Join(at.run, "vm")
	return at
}

// real follows the symbolic links of what exists.
func real(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return path
}

// expecter derives what should exist.
type expecter struct {
	cfg    Config
	places places
}

// machine is what the record of one machine stands for.
func (e expecter) machine(owner string, m Machine) expectation {
	id, err := sandbox.ParseID(owner)
	if err != nil || m.Stage == None || m.Stage == Changing {
		return expectation{}
	}
	var must []Object
	add := func(k Kind, name string) { must = append(must, Object{Kind: k, Name: name, Owner: owner}) }
	add(UID, uidName(m.UID))
	add(File, filepath.Join(e.places.machines, owner+".json"))
	add(File, filepath.Join(e.places.sandboxes, owner))
	add(File, filepath.Join(e.places.sandboxes, owner, "disk.img"))
	if m.Stage == Kept {
		return expectation{must: must}
	}
	add(File, filepath.Join(e.places.vm, owner))
	for _, name := range m.Parts.Sockets {
		add(Socket, filepath.Join(e.places.vm, owner, name))
	}
	if e.cfg.Groups != nil {
		add(Cgroup, "vm-"+owner)
	}
	if e.cfg.Processes && m.Parts.Process {
		add(Process, processName(m.Process))
	}
	must = append(must, box(m.Box, id)...)
	return expectation{must: must, may: func(o Object) bool {
		switch o.Kind {
		case Process:
			return m.Parts.Family || !m.Parts.Process
		case Socket:
			return m.Parts.Sockets == nil
		default:
			return false
		}
	}}
}

// box is what a whole network box consists of.
func box(of sandboxnet.Manager, id sandbox.ID) []Object {
	if of == nil {
		return nil
	}
	i, ok := of.(sandboxnet.Inspector)
	if !ok {
		return []Object{plainBox(id)}
	}
	inv, err := i.Complete(id)
	if err != nil {
		return nil // not an id: nothing can stand for it
	}
	return append(boxObjects(i, inv), Object{Kind: Mount, Name: inv.Mount, Owner: string(id)})
}

// installation is what exists whether or not there are machines.
func (e expecter) installation() expectation {
	var must []Object
	add := func(k Kind, name string) { must = append(must, Object{Kind: k, Name: name}) }
	add(File, e.places.vm)
	if e.cfg.Dir.Installation.PoolKind == string(pool.KindLoopXFS) {
		add(Mount, e.places.pool)
		add(Loop, e.places.image)
	}
	sockets := []string{filepath.Join(e.places.run, filepath.Base(e.cfg.Dir.NodeSocket())), filepath.Join(e.places.run, filepath.Base(e.cfg.Dir.FDSocket())),
		filepath.Join(e.places.run, filepath.Base(e.cfg.Dir.GatewaySocket()))}
	holder, ok := ownUp(e.cfg.Dir)
	if ok {
		for _, s := range sockets {
			add(Socket, s)
		}
		for _, addr := range []string{holder.Listen, holder.Data} {
			add(Port, portName(addr))
		}
	}
	// Without a space up (tests, and the moments of a removal) whoever serves makes these sockets and takes them away.
	return expectation{must: must, may: func(o Object) bool { return o.Kind == Socket && slices.Contains(sockets, o.Name) }}
}

// ownUp is the space up that this process is a part of, once it serves.
func ownUp(dir *datadir.Dir) (datadir.Holder, bool) {
	h, err := dir.ReadHolder()
	return h, err == nil && h.PID == os.Getppid() && h.Listen != "" && h.Data != ""
}

func processName(id confine.Identity) string {
	return fmt.Sprintf("pid %d of uid %d, started at %d", id.PID, id.UID, id.StartTime)
}
