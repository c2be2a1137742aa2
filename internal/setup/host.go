package setup

import (
	"context"
	"log/slog"

	"github.com/space-sandbox/space/internal/doctor"
	"github.com/space-sandbox/space/internal/guestos"
	"github.com/space-sandbox/space/internal/guestos/agentbin"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/template"
)

// Host is what setup uses of the machine it runs on. Tests replace parts of it.
type Host struct {
	// ConfigDir is shared by all installations of a host: /etc/space.
	ConfigDir string
	// EtcDir is /etc: users and their ranges of ids.
	EtcDir string
	// AptDir is /etc/apt.
	AptDir string

	// MissingPackages returns those packages, of the wanted ones, whose programs are not there.
	MissingPackages func(want []doctor.Package) []string
	// InstallPackages installs packages of the distribution.
	InstallPackages func(ctx context.Context, names []string, note func(string)) error
	// EnsureUser finds a system user or makes it.
	EnsureUser func(ctx context.Context, name string) (Account, error)
	// Agent returns the binary for the guest.
	Agent func() ([]byte, error)
	// BuildGuest makes kernel, initramfs and manifest in dir; work is a private directory for temporary files.
	BuildGuest func(ctx context.Context, agent []byte, dir, work string, note func(string)) (guestos.Manifest, error)
	// BuildTemplate makes a template in a stage; work is a private directory for temporary files.
	BuildTemplate func(ctx context.Context, r template.Recipe, work string, st *pool.Stage, note func(string)) (pool.Manifest, error)

	// At is called at each point between two effects of setup, with the name of the point; nil outside tests.
	At func(point string)
}

// NewHost returns the machine as it is; version is what the agent of this build calls itself.
func NewHost(version string, logger *slog.Logger) Host {
	h := Host{
		ConfigDir: "/etc/space", EtcDir: "/etc", AptDir: "/etc/apt",
		MissingPackages: doctor.MissingPackages, InstallPackages: installPackages, EnsureUser: ensureSystemUser,
		Agent: agentbin.Open,
	}
	h.BuildGuest = func(ctx context.Context, agent []byte, dir, work string, note func(string)) (guestos.Manifest, error) {
		return h.buildGuest(ctx, agent, version, dir, work, note)
	}
	h.BuildTemplate = func(ctx context.Context, r template.Recipe, work string, st *pool.Stage, note func(string)) (pool.Manifest, error) {
		b := template.Builder{WorkDir: work, AptDir: h.AptDir, Logger: logger}
		return b.Build(ctx, r, st, note)
	}
	return h
}

func (h Host) at(point string) {
	if h.At != nil {
		h.At(point)
	}
}
