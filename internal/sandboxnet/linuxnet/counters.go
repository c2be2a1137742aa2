package linuxnet

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/sandboxnet/nsthread"
)

// Counters tells how many packets each rule of a box has decided, by the names in rules.go.
func (m *Manager) Counters(ctx context.Context, id sandbox.ID) (map[string]uint64, error) {
	b, err := m.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	counts := make(map[string]uint64)
	err = nsthread.In(b.(*box).ns, func() error { return readCounters(counts) })
	if err != nil {
		return nil, fmt.Errorf("packet counters of %s: %w", id, err)
	}
	return counts, nil
}

// readCounters reads those of the calling thread's namespace.
func readCounters(into map[string]uint64) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyNetdev, nftables.TableFamilyINet} {
		objects, err := conn.GetNamedObjects(&nftables.Table{Family: family, Name: tableName})
		if err != nil {
			return fmt.Errorf("read counters: %w", err)
		}
		for _, o := range objects {
			named, ok := o.(*nftables.NamedObj)
			if !ok {
				continue
			}
			if c, ok := named.Obj.(*expr.Counter); ok {
				into[named.Name] = c.Packets
			}
		}
	}
	return nil
}
