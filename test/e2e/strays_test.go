//go:build realvm

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
)

// stray is an object made by hand.
type stray struct {
	kind, name string // as the ledger has it
	there      func() bool
	remove     func()
}

// strays are objects of each kind that no record stands for.
type strays struct {
	t       *testing.T
	ours    []stray // to be removed
	odd     []stray // with our mark, but not to be removed by a program
	foreign []stray // of others: not even seen
}

// newStrays makes them. Those that are left go with the test.
func newStrays(i *installation, box string) *strays {
	s := &strays{t: i.t}
	inst, pool, run := i.id(), filepath.Join(i.dir, "pool"), filepath.Join("/run/space", i.id())
	lost := string(sandbox.NewID())
	netns := func(list *[]stray, name string) {
		ns := s.namespace(name)
		*list = append(*list, ns, stray{kind: "mount", name: "/run/netns/" + name, there: mounted("/run/netns/" + name)})
		if strings.HasSuffix(name, lost) {
			s.inside(name, "tap0", "space", list)
		}
	}
	netns(&s.ours, "space-"+inst+"-"+lost)
	netns(&s.odd, "space-"+inst+"-odd")
	s.inside("space-"+inst+"-"+box, "tap9", "odd", &s.ours)
	s.ours = append(s.ours, s.group(inst, "vm-"+lost), s.process(i.record().UIDBase+200), s.process(i.record().UIDBase+5),
		s.file(filepath.Join(pool, "sandboxes", box, "core")),
		s.socket(filepath.Join(run, "odd.sock")), s.socket(filepath.Join(run, "vm", box, "odd.sock")),
		s.file(filepath.Join(i.dir, "node", "machines", lost+".json.tmp")),
		s.directory(filepath.Join(pool, "staging", "import-odd")), s.directory(filepath.Join(run, "vm", lost)))
	s.ours = append(s.ours, s.disk(pool, string(sandbox.NewID()))...)
	s.odd = append(s.odd, s.directory(filepath.Join(pool, "sandboxes", "odd")), s.group(inst, "odd"))
	// Others: another installation, another user, another owner of stages.
	var others []stray
	netns(&others, "space-zz"+inst+"-"+string(sandbox.NewID()))
	s.foreign = append(others, s.group("zz"+inst, "vm-"+lost), s.process(65534), s.directory(filepath.Join(pool, "staging", "setup-odd")),
		s.file(filepath.Join(i.dir, "node", "odd")))
	return s
}

// names lists strays as driftNames does.
func (s *strays) names(all []stray) []string {
	var names []string
	for _, o := range all {
		names = append(names, fmt.Sprintf("%s %s live=true", o.kind, o.name))
	}
	slices.Sort(names)
	return names
}

func (s *strays) action(r apiv1.Repair) string {
	for _, o := range s.odd {
		if o.kind == r.Kind && o.name == r.Name {
			return "report"
		}
	}
	return "remove"
}

func (s *strays) check(all []stray, want bool, when string) {
	s.t.Helper()
	for _, o := range all {
		if o.there() != want {
			s.t.Errorf("%s: %s %s: there is %v", when, o.kind, o.name, !want)
		}
	}
}

func (s *strays) removeOdd() {
	for _, o := range s.odd {
		if o.remove != nil {
			o.remove()
		}
	}
}

func (s *strays) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// made registers the removal.
func (s *strays) made(o stray) stray {
	s.t.Cleanup(o.remove)
	return o
}

func (s *strays) namespace(name string) stray {
	path := "/run/netns/" + name
	s.must(os.WriteFile(path, nil, 0o400))
	o := s.made(stray{kind: "namespace", name: name, there: exists(path), remove: func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = os.Remove(path)
	}})
	ns, err := nsthread.New()
	s.must(err)
	defer ns.Close()
	s.must(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, ""))
	return o
}

// inside makes a tap and a table in a namespace.
func (s *strays) inside(name, tap, table string, list *[]stray) {
	in := func(f func() error) error {
		ns, err := os.Open("/run/netns/" + name)
		if err != nil {
			return err
		}
		defer ns.Close()
		return nsthread.In(ns, f)
	}
	s.must(in(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
		return errors.Join(conn.Flush(), netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tap}, Mode: netlink.TUNTAP_MODE_TAP}))
	}))
	*list = append(*list, stray{kind: "tap", name: name + " " + tap, there: func() bool {
		return in(func() error { _, err := net.InterfaceByName(tap); return err }) == nil
	}}, stray{kind: "nft_table", name: name + " inet " + table, there: func() bool {
		return in(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			tables, err := conn.ListTables()
			if err == nil && !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table }) {
				err = os.ErrNotExist
			}
			return err
		}) == nil
	}})
}

func (s *strays) group(installation, name string) stray {
	groups, err := confine.OpenGroups(installation)
	s.must(err)
	g, err := groups.Create(name, confine.Limits{})
	s.must(err)
	return s.made(stray{kind: "cgroup", name: name, there: func() bool { _, err := groups.Open(name); return err == nil }, remove: func() {
		_ = g.Remove(s.t.Context())
		if strings.HasPrefix(installation, "zz") {
			_ = groups.Prune(s.t.Context())
		}
	}})
}

// process starts a process of another uid.
func (s *strays) process(uid uint32) stray {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	s.must(cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	found, err := confine.RunningAs(uid, 1)
	s.must(err)
	i := slices.IndexFunc(found, func(p confine.Identity) bool { return p.PID == cmd.Process.Pid })
	if i < 0 {
		s.t.Fatalf("pid %d is not seen", cmd.Process.Pid)
	}
	return s.made(stray{kind: "process", name: fmt.Sprintf("pid %d of uid %d, started at %d", cmd.Process.Pid, uid, found[i].StartTime),
		there: func() bool {
			select {
			case <-ended:
				return false
			default:
				return true
			}
		}, remove: func() { _ = cmd.Process.Kill(); <-ended }})
}

func (s *strays) file(path string) stray {
	s.must(os.WriteFile(path, []byte("x"), 0o600))
	return s.made(stray{kind: "file", name: path, there: exists(path), remove: func() { _ = os.Remove(path) }})
}

func (s *strays) directory(path string) stray {
	s.must(os.Mkdir(path, 0o700))
	return s.made(stray{kind: "file", name: path, there: exists(path), remove: func() { _ = os.Remove(path) }})
}

func (s *strays) socket(path string) stray {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	s.must(err)
	l.SetUnlinkOnClose(false)
	return s.made(stray{kind: "socket", name: path, there: exists(path), remove: func() { l.Close(); _ = os.Remove(path) }})
}

// disk makes the files of a sandbox that nobody knows, with a directory of others mounted among them: what is in that
// directory must outlive the removal of the files.
func (s *strays) disk(pool, id string) []stray {
	dir := filepath.Join(pool, "sandboxes", id)
	all := []stray{s.directory(dir), s.file(filepath.Join(dir, "disk.img"))}
	point, precious := filepath.Join(dir, "mnt"), s.t.TempDir()
	all = append(all, s.directory(point))
	kept := s.file(filepath.Join(precious, "precious"))
	s.foreign = append(s.foreign, kept)
	s.must(unix.Mount(precious, point, "", unix.MS_BIND, ""))
	return append(all, s.made(stray{kind: "mount", name: point, there: mounted(point),
		remove: func() { _ = unix.Unmount(point, unix.MNT_DETACH) }}))
}
