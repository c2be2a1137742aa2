package linuxnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var _ sandboxnet.Inspector = (*Manager)(nil)

// MountPrefix begins the mounts of all boxes of this installation.
func (m *Manager) MountPrefix() string { return mountDir + "/" + m.prefix }

// Complete is the inventory of a whole box.
func (m *Manager) Complete(id sandbox.ID) (sandboxnet.Inventory, error) {
	path, err := m.path(id)
	if err != nil {
		return sandboxnet.Inventory{}, err
	}
	return sandboxnet.Inventory{Name: m.prefix + string(id), ID: id, Mount: path, Links: []string{tapName},
		Tables: []string{"inet " + tableName, "netdev " + tableName}}, nil
}

// Inspect looks into every namespace with this installation's prefix. It takes one thread and two netlink sockets at a
// time.
func (m *Manager) Inspect(ctx context.Context) ([]sandboxnet.Inventory, error) {
	names, err := m.names()
	if err != nil {
		return nil, err
	}
	var all []sandboxnet.Inventory
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		inv := sandboxnet.Inventory{Name: name, Mount: mountDir + "/" + name}
		if id, err := sandbox.ParseID(strings.TrimPrefix(name, m.prefix)); err == nil {
			inv.ID = id
		}
		err := inspect(&inv)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look into the network %s: %w", name, err)
		}
		all = append(all, inv)
	}
	return all, nil
}

// inspect fills in what is inside. A file without a namespace has nothing inside.
func inspect(inv *sandboxnet.Inventory) error {
	ns, err := openNamespace(inv.Mount)
	if errors.Is(err, errNotNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return nsthread.In(ns, func() (err error) {
		if inv.Links, err = ownLinks(); err != nil {
			return err
		}
		inv.Tables, err = ownTables()
		return err
	})
}

// ownLinks names the calling thread's interfaces, without loopback and the fallback tunnels that the kernel makes.
func ownLinks() ([]string, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("route netlink: %w", err)
	}
	defer nl.Close()
	links, err := nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var names []string
	for _, l := range links {
		if name := l.Attrs().Name; !slices.Contains(kernelLinks(), name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// kernelLinks are in a namespace without anybody's doing, and cannot be removed there.
func kernelLinks() []string {
	return []string{"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
}

func ownTables() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list packet filter tables: %w", err)
	}
	var names []string
	for _, t := range tables {
		names = append(names, tableText(t))
	}
	slices.Sort(names)
	return names, nil
}

func tableText(t *nftables.Table) string {
	families := map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge"}
	family := families[t.Family]
	if family == "" {
		family = fmt.Sprint(t.Family)
	}
	return family + " " + t.Name
}

// RemoveLink removes one interface of a box.
func (m *Manager) RemoveLink(ctx context.Context, id sandbox.ID, link string) error {
	return m.inside(ctx, id, func() error {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("route netlink: %w", err)
		}
		defer nl.Close()
		found, err := nl.LinkByName(link)
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", link, err)
		}
		if err := nl.LinkDel(found); err != nil {
			return fmt.Errorf("remove %s: %w", link, err)
		}
		return nil
	})
}

// RemoveTable removes one packet filter table of a box.
func (m *Manager) RemoveTable(ctx context.Context, id sandbox.ID, table string) error {
	return m.inside(ctx, id, func() error {
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		tables, err := conn.ListTables()
		if err != nil {
			return fmt.Errorf("list packet filter tables: %w", err)
		}
		for _, t := range tables {
			if tableText(t) == table {
				conn.DelTable(t)
			}
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("remove table %s: %w", table, err)
		}
		return nil
	})
}

// inside runs f in the namespace of a box, and not at all when there is none.
func (m *Manager) inside(ctx context.Context, id sandbox.ID, f func() error) error {
	path, err := m.path(id)
	if err != nil {
		return err
	}
	defer m.locks.lock(id)()
	if err := ctx.Err(); err != nil {
		return err
	}
	ns, err := openNamespace(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotNamespace) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return nsthread.In(ns, f)
}
