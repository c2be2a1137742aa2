// Package doctor looks at a host and an installation: what is needed, what was found, why that is so and what helps.
// Setup shares its list of packages; node's own probe of KVM is the one used here.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/space-sandbox/space/internal/datadir"
)

// Status is the outcome of a check.
type Status string

// The outcomes: a warning is something that works, but not well, or that could not be looked at.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Found is what is there.
	Found string `json:"found"`
	// Cause is why that is a problem, Fix what helps; both are empty when all is well.
	Cause string `json:"cause,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

// Config says what to look at.
type Config struct {
	DataDir string
	// Ports are the addresses that space up would listen on.
	Ports []string
	// CheckClaim fails when the host does not know the installation at this place; nil: not looked at.
	CheckClaim func(*datadir.Dir) error
	// Leftovers lists data directories that are gone or were never finished, of which something is left in the kernel;
	// nil: not looked at.
	Leftovers func() ([]string, error)
	Logger    *slog.Logger
}

// patient is what the checks share.
type patient struct {
	Config
	root bool
	// dir is nil when the data directory is not set up; dirErr says why.
	dir    *datadir.Dir
	dirErr error
}

// check is one of the list; it returns without a name.
type check struct {
	name string
	do   func(*patient, context.Context) Check
}

func checks() []check {
	return []check{
		{"root", (*patient).checkRoot},
		{"kernel", (*patient).checkKernel},
		{"memory", (*patient).checkMemory},
		{"clock", (*patient).checkClock},
		{"packages", (*patient).checkPackages},
		{"tun", (*patient).checkTun},
		{"namespaces", (*patient).checkNamespaces},
		{"nftables", (*patient).checkNftables},
		{"cgroups", (*patient).checkCgroups},
		{"landlock", (*patient).checkLandlock},
		{"data directory", (*patient).checkDataDir},
		{"installation", (*patient).checkInstallation},
		{"users", (*patient).checkUsers},
		{"uid range", (*patient).checkUIDRange},
		{"leftovers", (*patient).checkLeftovers},
		{"pool", (*patient).checkPool},
		{"space", (*patient).checkSpace},
		{"guest", (*patient).checkGuest},
		{"templates", (*patient).checkTemplates},
		{"kvm", (*patient).checkKVM},
		{"ports", (*patient).checkPorts},
	}
}

// Run does all checks, one after the other. It changes nothing; as another user than root it finds out less.
func Run(ctx context.Context, cfg Config) []Check {
	p := &patient{Config: cfg, root: os.Geteuid() == 0}
	p.dir, p.dirErr = datadir.Open(cfg.DataDir)
	var out []Check
	for _, c := range checks() {
		if ctx.Err() != nil {
			out = append(out, Check{Name: c.name, Status: Fail, Found: "not looked at", Cause: "doctor was stopped", Fix: "run it again"})
			continue
		}
		result := c.do(p, ctx)
		result.Name = c.name
		out = append(out, result)
	}
	return out
}

// Failed reports whether any check failed.
func Failed(results []Check) bool {
	for _, c := range results {
		if c.Status == Fail {
			return true
		}
	}
	return false
}

// WriteText writes the results for people.
func WriteText(w io.Writer, results []Check) error {
	var before Check
	for _, c := range results {
		again := c.Cause == before.Cause && c.Fix == before.Fix // said already, right above
		before = c
		if _, err := fmt.Fprintf(w, "%-5s %-15s %s\n", c.Status, c.Name, c.Found); err != nil {
			return err
		}
		for _, line := range []struct{ label, text string }{{"why", c.Cause}, {"fix", c.Fix}} {
			if line.text == "" || again {
				continue
			}
			if _, err := fmt.Fprintf(w, "%21s %s: %s\n", "", line.label, line.text); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteJSON writes {"status":…,"checks":[…]}.
func WriteJSON(w io.Writer, results []Check) error {
	status := OK
	for _, c := range results {
		if c.Status == Fail || (c.Status == Warn && status == OK) {
			status = c.Status
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Status Status  `json:"status"`
		Checks []Check `json:"checks"`
	}{status, results})
}

func ok(format string, args ...any) Check {
	return Check{Status: OK, Found: fmt.Sprintf(format, args...)}
}

func needsRoot() Check {
	return Check{Status: Warn, Found: "not looked at", Cause: "only root can find out", Fix: "run: sudo space doctor"}
}

// notSetUp is what checks of an installation say without one.
func (p *patient) notSetUp() Check {
	return Check{Status: Fail, Found: "missing", Cause: p.DataDir + " is not set up", Fix: "run: space setup --data-dir " + p.DataDir}
}
