package qemu

import "context"

// ProveEmulated does what Probe does, but by emulation: it shows that the proof succeeds where the accelerator works.
func (d *Driver) ProveEmulated(ctx context.Context) (seen string, err error) {
	return d.proveAlive(ctx, false)
}
