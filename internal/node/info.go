package node

import (
	"context"
	"fmt"
	"runtime"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

func (s service) GetNode(ctx context.Context, _ *connect.Request[nodev1.GetNodeRequest]) (*connect.Response[nodev1.GetNodeResponse], error) {
	n := s.n
	usage, err := n.deps.Usage(ctx)
	if err != nil {
		return nil, fmt.Errorf("pool usage: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("sysinfo: %w", err)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	res := &nodev1.GetNodeResponse{
		InstanceId: n.instance, InstallationId: n.deps.Dir.Installation.ID, DefaultDriver: n.deps.DefaultDriver,
		Pool: &nodev1.Pool{Kind: n.deps.Dir.Installation.PoolKind, TotalBytes: uint64(usage.TotalBytes), FreeBytes: uint64(usage.FreeBytes),
			ReserveBytes: n.reserve.bytes(usage.TotalBytes)},
		Cpus:        uint32(runtime.NumCPU()),
		MemoryBytes: uint64(info.Totalram) * uint64(info.Unit), MemoryAvailableBytes: availableMemory(),
		Kernel: unix.ByteSliceToString(uts.Release[:]), Warnings: n.warnings(), MaxMachines: n.uids.most(),
	}
	for _, b := range n.deps.Backends {
		p := n.deps.Probes[b.Driver.Name()]
		res.Drivers = append(res.Drivers, &nodev1.Driver{Name: b.Driver.Name(), Available: p.Available, Isolation: p.Isolation,
			Version: p.Version, Reason: p.Reason})
	}
	return connect.NewResponse(res), nil
}

// warnings are what an operator should know of this host, one sentence each.
func (n *Node) warnings() []string {
	var out []string
	if n.deps.Groups == nil {
		out = append(out, "machines run without control groups: no limit on memory, cpu or processes of a VMM")
	} else {
		for _, c := range n.deps.Groups.Missing() {
			out = append(out, "control group controller "+c+" is not available: that limit is not enforced")
		}
	}
	if n.deps.Dir.Installation.PoolKind == "copy" {
		out = append(out, "the pool has no reflinks: every disk is a full copy, slow and large")
	}
	if n.reserve.isLow() {
		out = append(out, sandbox.AsError(n.reserve.full("")).Cause+": machines are paused until then")
	}
	return out
}

func (s service) ListTemplates(context.Context, *connect.Request[nodev1.ListTemplatesRequest]) (*connect.Response[nodev1.ListTemplatesResponse], error) {
	all, err := s.n.deps.Pool.ListTemplates()
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	res := &nodev1.ListTemplatesResponse{}
	for _, t := range all {
		res.Templates = append(res.Templates, templateProto(t))
	}
	return connect.NewResponse(res), nil
}
