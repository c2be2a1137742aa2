package control

import "context"

// Node describes the machine, as node sees it now.
func (c *Control) Node(ctx context.Context) (NodeInfo, error) {
	res, err := c.askNode(ctx)
	if err != nil {
		return NodeInfo{}, err
	}
	live, err := c.Store.LiveSandboxes(ctx)
	if err != nil {
		return NodeInfo{}, storeError(err)
	}
	info := NodeInfo{InstallationID: res.InstallationId, DefaultDriver: res.DefaultDriver, PoolKind: res.Pool.GetKind(),
		PoolTotal: int64(res.Pool.GetTotalBytes()), PoolFree: int64(res.Pool.GetFreeBytes()),
		PoolReserve: int64(res.Pool.GetReserveBytes()), CPUs: int(res.Cpus),
		MemoryBytes: int64(res.MemoryBytes), MemoryFree: int64(res.MemoryAvailableBytes), Kernel: res.Kernel,
		Sandboxes: len(live), MaxSandboxes: c.budget.most(c.Limits.Sandboxes), Warnings: res.Warnings,
		Draining: c.draining.Load(), UnderWay: c.engine.Unfinished()}
	for _, d := range res.Drivers {
		info.Drivers = append(info.Drivers, DriverInfo{Name: d.Name, Available: d.Available, Isolation: d.Isolation,
			Version: d.Version, Reason: d.Reason})
	}
	return info, nil
}
