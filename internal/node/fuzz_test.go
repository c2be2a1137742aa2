package node

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// control may be taken over: what node makes of its message is an id, a digest and bounded numbers, or nothing.
func FuzzEnsureRequest(f *testing.F) {
	d := &driver{host: newHost()}
	n := &Node{deps: Deps{Backends: []Backend{{Driver: d}}, DefaultDriver: d.Name(), Probes: map[string]vmm.Probe{d.Name(): {Available: true}}}}
	good := &nodev1.EnsureMachineRequest{SandboxId: string(sandbox.NewID()), Generation: 1, TemplateDigest: "sha256:" + strings.Repeat("0", 64),
		Vcpus: 1, MemoryMib: 512, DiskMib: 4096, AgentToken: strings.Repeat("a", 64)}
	for _, m := range []*nodev1.EnsureMachineRequest{good, {}, {SandboxId: "../../etc", TemplateDigest: "sha256:../x", Vcpus: 1 << 31}} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m nodev1.EnsureMachineRequest
		if proto.Unmarshal(data, &m) != nil {
			return
		}
		spec, err := n.checkSpec(&m)
		if err != nil {
			if status := sandbox.CodeOf(err).Info().Status; status >= 500 && sandbox.CodeOf(err) != sandbox.CodeDriverUnavailable {
				t.Errorf("%v: %v", &m, err)
			}
			return
		}
		if _, err := sandbox.ParseID(string(spec.id)); err != nil || len(spec.templateDigest) != 71 || strings.ContainsAny(spec.templateDigest, "/.") ||
			spec.vcpus < 1 || spec.vcpus > sandbox.MaxVCPUs || spec.memoryMiB < sandbox.MinMemoryMiB || spec.memoryMiB > sandbox.MaxMemoryMiB ||
			spec.diskMiB < sandbox.MinDiskMiB || spec.diskMiB > sandbox.MaxDiskMiB || len(spec.agentToken) != 64 {
			t.Errorf("%v became %+v", &m, spec)
		}
	})
}
