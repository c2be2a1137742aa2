//go:build realvm

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/space-sandbox/space/internal/datadir"
)

func (i *installation) record() datadir.Installation {
	i.t.Helper()
	dir, err := datadir.Open(i.dir)
	if err != nil {
		i.t.Fatal(err)
	}
	return dir.Installation
}

// id is the installation's own.
func (i *installation) id() string { return i.record().ID }

// ownsUID reports whether a /proc entry belongs to a uid of the installation's range.
func (i *installation) ownsUID(info os.FileInfo) bool {
	uid := info.Sys().(*syscall.Stat_t).Uid
	r := i.record()
	return uid >= r.UIDBase && uid < r.UIDBase+r.UIDCount
}

// findVMM returns the pid of a sandbox's VMM as node recorded it, if it runs.
func (i *installation) findVMM(id string) (int, bool) {
	i.t.Helper()
	data, err := os.ReadFile(filepath.Join(i.dir, "node", "machines", id+".json"))
	if err != nil {
		return 0, false
	}
	var rec struct {
		Machine *struct {
			Process struct {
				PID int `json:"pid"`
			} `json:"process"`
		} `json:"machine"`
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		i.t.Fatal(err)
	}
	if rec.Machine == nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", rec.Machine.Process.PID))
	return rec.Machine.Process.PID, err == nil && strings.Contains(string(line), "qemu")
}
