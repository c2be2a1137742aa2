package control

import (
	"context"
	"fmt"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// uncounted is the driver whose machines are processes of the host: their memory is not reserved.
const uncounted = "fake"

// plan turns a request into the record of a sandbox to be created. All that is knowable is refused here, before an
// operation exists.
func (c *Control) plan(ctx context.Context, spec sandbox.Spec, by auth.Principal) (sandbox.Sandbox, error) {
	if err := c.node.check(); err != nil {
		return sandbox.Sandbox{}, err
	}
	if err := c.lookAtPool(ctx); err != nil {
		return sandbox.Sandbox{}, err
	}
	info := c.info.Load()
	driver, err := chooseDriver(info, spec.Driver)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if spec.Name != "" {
		if _, err := sandbox.ParseName(spec.Name); err != nil {
			return sandbox.Sandbox{}, err
		}
	}
	if spec.Lease != nil {
		if err := checkLease(spec.Lease.TTL, spec.Lease.OnExpiry); err != nil {
			return sandbox.Sandbox{}, err
		}
		spec.Lease = &sandbox.Lease{TTL: spec.Lease.TTL, OnExpiry: spec.Lease.OnExpiry, Remaining: spec.Lease.TTL}
	}
	if spec.Template == "" {
		return sandbox.Sandbox{}, invalid("template", "is required")
	}
	tpl, err := c.GetTemplate(ctx, spec.Template)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	spec = withDefaults(spec, tpl)
	if err := checkSizes(spec, tpl, driver, info); err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.Sandbox{ID: sandbox.NewID(), Name: spec.Name, State: sandbox.StateCreating,
		DesiredState: sandbox.StateRunning, Template: sandbox.TemplateRef{Ref: normalRef(spec.Template), Digest: tpl.Digest},
		Driver: driver.Name, Isolation: driver.Isolation, VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, DiskMiB: spec.DiskMiB,
		Env: spec.Env, Metadata: spec.Metadata, Lease: spec.Lease, Generation: 1, AgentToken: newAgentToken(), Owner: by.KeyID,
		CreatedAt: c.Now().UTC()}, nil
}

func withDefaults(spec sandbox.Spec, tpl sandbox.Template) sandbox.Spec {
	if spec.VCPUs == 0 {
		spec.VCPUs = sandbox.DefaultVCPUs
	}
	if spec.MemoryMiB == 0 {
		spec.MemoryMiB = sandbox.DefaultMemoryMiB
	}
	if spec.DiskMiB == 0 {
		spec.DiskMiB = max(sandbox.DefaultDiskMiB, tpl.MinDiskMiB)
	}
	return spec
}

// chooseDriver finds the asked driver, or node's default.
func chooseDriver(info *nodev1.GetNodeResponse, name string) (*nodev1.Driver, error) {
	if name == "" {
		name = info.GetDefaultDriver()
	}
	var known []string
	for _, d := range info.GetDrivers() {
		known = append(known, d.Name)
		if d.Name != name {
			continue
		}
		if !d.Available {
			return nil, &sandbox.Error{Code: sandbox.CodeDriverUnavailable, Message: "this driver does not work on the host",
				Cause: name + ": " + d.Reason, Remedy: "see space doctor, or use another driver"}
		}
		return d, nil
	}
	return nil, invalid("driver", fmt.Sprintf("must be one of %v", known))
}

func checkSizes(spec sandbox.Spec, tpl sandbox.Template, driver *nodev1.Driver, info *nodev1.GetNodeResponse) error {
	var wrong []sandbox.FieldError
	within := func(field string, n, low, high int) {
		if n < low || n > high {
			wrong = append(wrong, sandbox.FieldError{Field: field, Message: fmt.Sprintf("must be %d to %d", low, high)})
		}
	}
	memory := sandbox.MaxMemoryMiB
	if driver.Name != uncounted {
		memory = min(memory, int(info.GetMemoryBytes()>>20))
	}
	within("vcpus", spec.VCPUs, sandbox.MinVCPUs, sandbox.MaxVCPUs)
	within("memory_mib", spec.MemoryMiB, sandbox.MinMemoryMiB, memory)
	within("disk_mib", spec.DiskMiB, max(sandbox.MinDiskMiB, tpl.MinDiskMiB), sandbox.MaxDiskMiB)
	if len(wrong) == 0 {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "the request is not valid",
		Cause: wrong[0].Field + " " + wrong[0].Message, Fields: wrong}
}
