package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
)

// oddName is the reason to leave alone what has our mark but not a name that SPACE gives.
const oddName = "SPACE gives no such name; look at it, then remove it by hand"

// owner is the sandbox that a name stands for.
func owner(name string) (id, keep string) {
	if _, err := sandbox.ParseID(name); err != nil {
		return "", oddName
	}
	return name, ""
}

// uidScan lists the uids that are not free. They are a matter of node's own memory: the kernel keeps no list.
func uidScan(cfg Config) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		var all []Object
		for uid, owner := range cfg.Journal.Snapshot().UIDs {
			all = append(all, Object{Kind: UID, Name: uidName(uid), Owner: owner})
		}
		return all, nil
	}
}

// processScan lists what runs under the installation's uids. The last of them is not looked at unless a machine has it:
// space doctor boots its probe with it.
func processScan(cfg Config) func(context.Context) ([]Object, error) {
	in := cfg.Dir.Installation
	return func(context.Context) ([]Object, error) {
		found, err := confine.RunningAs(in.UIDBase, in.UIDCount)
		if err != nil {
			return nil, err
		}
		uids := cfg.Journal.Snapshot().UIDs
		var all []Object
		for _, p := range found {
			o := Object{Kind: Process, Name: processName(p), process: p}
			slot := p.UID - in.UIDBase
			if _, taken := uids[p.UID]; slot == in.UIDCount-1 && !taken {
				continue
			}
			if slot > 0 && slot < cfg.ReservedUIDs {
				o.Owner = OwnerImport
			}
			all = append(all, o)
		}
		return all, nil
	}
}

// endProcess ends one process. While it does, no machine gets its uid.
func endProcess(cfg Config) func(context.Context, Object) error {
	return func(ctx context.Context, o Object) error {
		if o.Owner == "" {
			release, ok := cfg.Journal.Claim(o.process.UID)
			if !ok {
				return errInUse
			}
			defer release()
		}
		p, err := confine.Adopt(o.process)
		if err != nil {
			return ignoreGone(err)
		}
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		defer cancel()
		return errors.Join(p.Kill(ctx), p.Close())
	}
}

const killTimeout = 10 * time.Second

func groupScan(cfg Config) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		names, err := cfg.Groups.List()
		if err != nil {
			return nil, err
		}
		var all []Object
		for _, name := range names {
			o := Object{Kind: Cgroup, Name: name, Keep: oddName}
			if rest, ok := strings.CutPrefix(name, "vm-"); ok {
				o.Owner, o.Keep = owner(rest)
			} else if name == OwnerImport {
				o.Owner, o.Keep = OwnerImport, ""
			}
			all = append(all, o)
		}
		return all, nil
	}
}

// boxScan lists the namespaces of the installation's boxes and what is in them.
func boxScan(box sandboxnet.Inspector) func(context.Context) ([]Object, error) {
	return func(ctx context.Context) ([]Object, error) {
		boxes, err := box.Inspect(ctx)
		if err != nil {
			return nil, err
		}
		var all []Object
		for _, inv := range boxes {
			all = append(all, boxObjects(box, inv)...)
		}
		return all, nil
	}
}

func boxObjects(box sandboxnet.Inspector, inv sandboxnet.Inventory) []Object {
	o := Object{Kind: Namespace, Name: inv.Name, Owner: string(inv.ID), box: box}
	if inv.ID == "" {
		o.Keep = oddName
	}
	all := []Object{o}
	for _, link := range inv.Links {
		o.Kind, o.Name, o.inside = Tap, inv.Name+" "+link, link
		all = append(all, o)
	}
	for _, table := range inv.Tables {
		o.Kind, o.Name, o.inside = NFTTable, inv.Name+" "+table, table
		all = append(all, o)
	}
	return all
}

// removeInside takes one link or table out of a box; the box itself goes with its sandbox.
func removeInside(ctx context.Context, o Object) error {
	switch o.Kind {
	case Tap:
		return o.box.RemoveLink(ctx, sandbox.ID(o.Owner), o.inside)
	case NFTTable:
		return o.box.RemoveTable(ctx, sandbox.ID(o.Owner), o.inside)
	default:
		return errNotByItself
	}
}

// plainBoxScan lists boxes that are no objects of the kernel, as the fake's.
func plainBoxScan(m sandboxnet.Manager) func(context.Context) ([]Object, error) {
	return func(ctx context.Context) ([]Object, error) {
		ids, err := m.List(ctx)
		if err != nil {
			return nil, err
		}
		var all []Object
		for _, id := range ids {
			all = append(all, plainBox(id))
		}
		return all, nil
	}
}

func plainBox(id sandbox.ID) Object {
	return Object{Kind: File, Name: "network box " + string(id), Owner: string(id)}
}

// mountScan lists the mount points of the installation. A mount on the directory of a pool that is no loop image is the
// operator's.
func mountScan(cfg Config, at places) func(context.Context) ([]Object, error) {
	return func(context.Context) ([]Object, error) {
		points, err := mountPoints()
		if err != nil {
			return nil, err
		}
		var all []Object
		for _, p := range points {
			if o, ours := mountObject(cfg, at, p); ours {
				all = append(all, o)
			}
		}
		return all, nil
	}
}

func mountObject(cfg Config, at places, point string) (o Object, ours bool) {
	o = Object{Kind: Mount, Name: point}
	for _, m := range cfg.Boxes {
		if box, ok := m.(sandboxnet.Inspector); ok {
			if name, ok := strings.CutPrefix(point, box.MountPrefix()); ok {
				o.Owner, o.Keep = owner(name)
				o.box = box
				return o, true
			}
		}
	}
	if point == at.pool {
		o.Keep = "it is the pool"
		return o, cfg.Dir.Installation.PoolKind == loopXFS
	}
	for _, dir := range []string{at.sandboxes, at.vm} {
		if rest, ok := strings.CutPrefix(point, dir+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			o.Owner, o.Keep = owner(first)
			return o, true
		}
	}
	for _, dir := range []string{at.pool, at.run, at.machines} {
		if strings.HasPrefix(point, dir+"/") {
			o.Keep = "it hides a directory of the installation; look at it, then unmount it by hand"
			return o, true
		}
	}
	return o, false
}

// mountPoints lists where something is mounted, each place once.
func mountPoints() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var points []string
	seen := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if p := unescape(fields[4]); !seen[p] {
			seen[p] = true
			points = append(points, p)
		}
	}
	return points, nil
}

// unescape undoes what the kernel does to spaces and the like in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmount takes away what is mounted at one place, also while somebody uses it. Files in it stay where they are. The
// name of a namespace goes with its box.
func unmount(_ context.Context, o Object) error {
	if o.box != nil {
		return errNotByItself
	}
	err := unix.Unmount(o.Name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !isGone(err) {
		return fmt.Errorf("unmount %s: %w", o.Name, err)
	}
	return nil
}
