// Package datadir knows every path of an installation. Nobody else joins paths of the data directory by hand.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Default is where an installation lives when nobody says otherwise.
const Default = "/var/lib/space"

// Installation is what setup decides once; it is stored in installation.json.
type Installation struct {
	// ID tells installations on one host apart, in names of namespaces, cgroups and tables: 6 of [a-z0-9].
	ID string `json:"id"`
	// UIDBase and UIDCount are the range of uids (and gids) for VMs and workers.
	UIDBase  uint32 `json:"uid_base"`
	UIDCount uint32 `json:"uid_count"`
	// ControlUID/GID and GatewayUID/GID are the users space and space-gw.
	ControlUID uint32 `json:"control_uid"`
	ControlGID uint32 `json:"control_gid"`
	GatewayUID uint32 `json:"gateway_uid"`
	GatewayGID uint32 `json:"gateway_gid"`
	// PoolKind is reflink, loop-xfs or copy.
	PoolKind string `json:"pool_kind"`
	// PoolReserveMiB is what node keeps free of the pool (see docs/operations.md); 0 lets it choose.
	PoolReserveMiB uint64 `json:"pool_reserve_mib,omitempty"`
}

// Check fails when something is missing that every finished installation has.
func (in Installation) Check() error {
	for _, f := range []struct {
		name string
		set  bool
	}{{"id", in.ID != ""}, {"uid_base", in.UIDBase != 0}, {"uid_count", in.UIDCount != 0}, {"control_uid", in.ControlUID != 0},
		{"gateway_uid", in.GatewayUID != 0}, {"pool_kind", in.PoolKind != ""}} {
		if !f.set {
			return fmt.Errorf("%s is missing", f.name)
		}
	}
	return nil
}

// Dir is the data directory of an installation.
type Dir struct {
	Path         string // absolute
	Installation Installation
	// RunRoot is the parent of RunDir; "" is /run/space. Tests have their own.
	RunRoot string
}

// Open reads the installation at path. A directory that setup has not finished is a host_setup error.
func Open(path string) (*Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %q: %w", path, err)
	}
	d := &Dir{Path: abs}
	data, err := os.ReadFile(d.InstallationFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "this data directory is not set up",
			Cause: d.InstallationFile() + " does not exist", Remedy: "run: space setup --data-dir " + abs, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	err = json.Unmarshal(data, &d.Installation)
	if err == nil {
		err = d.Installation.Check()
	}
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the installation file is damaged",
			Cause: d.InstallationFile() + ": " + err.Error(), Remedy: "run: space setup --data-dir " + abs, Err: err}
	}
	return d, nil
}

func (d *Dir) join(name ...string) string { return filepath.Join(append([]string{d.Path}, name...)...) }

// InstallationFile is written last by setup: when it exists, the rest does.
func (d *Dir) InstallationFile() string { return d.join("installation.json") }

// AdminKeyFile holds the first key (0600, root).
func (d *Dir) AdminKeyFile() string { return d.join("admin.key") }

// LockFile is held by space up; it names the holder.
func (d *Dir) LockFile() string { return d.join("up.lock") }

// Holder says who runs an installation; it is the content of the lock file.
type Holder struct {
	PID     int    `json:"pid"`
	Listen  string `json:"listen,omitempty"`
	Data    string `json:"data_listen,omitempty"`
	Version string `json:"version,omitempty"`
}

// ReadHolder returns what the lock file says. It is true only while somebody holds the lock.
func (d *Dir) ReadHolder() (Holder, error) {
	f, err := os.Open(d.LockFile())
	if err != nil {
		return Holder{}, err
	}
	defer f.Close()
	return DecodeHolder(f)
}

// DecodeHolder reads the content of the lock file from r.
func DecodeHolder(r io.ReaderAt) (Holder, error) {
	var h Holder
	data, err := io.ReadAll(io.NewSectionReader(r, 0, 4096))
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(data, &h)
}

// ControlDir belongs to user space (0700).
func (d *Dir) ControlDir() string { return d.join("control") }

// TranscriptsDir has the transcripts of recorded command sessions.
func (d *Dir) TranscriptsDir() string { return d.join("control", "transcripts") }

// StoreFile is control's SQLite database.
func (d *Dir) StoreFile() string { return d.join("control", "space.db") }

// SigningKeyFile is control's Ed25519 key for attach tokens.
func (d *Dir) SigningKeyFile() string { return d.join("control", "signing.key") }

// AdminHashFile is how setup hands the hash of the first key to control, which imports it at start.
func (d *Dir) AdminHashFile() string { return d.join("control", "admin.hash") }

// NodeDir belongs to root (0700).
func (d *Dir) NodeDir() string { return d.join("node") }

// MachinesDir holds one state file per machine.
func (d *Dir) MachinesDir() string { return d.join("node", "machines") }

// GuestDir holds vmlinux, initramfs and their manifest (package guestos).
func (d *Dir) GuestDir() string { return d.join("node", "guest") }

// PoolDir is the copy-on-write file system: a plain directory or the mount of PoolImage.
func (d *Dir) PoolDir() string { return d.join("pool") }

// PoolImage is the file behind a loop-xfs pool.
func (d *Dir) PoolImage() string { return d.join("pool.img") }

// RunDir is where sockets are: on tmpfs, and short, since a socket path has at most 108 bytes.
func (d *Dir) RunDir() string {
	root := d.RunRoot
	if root == "" {
		root = "/run/space"
	}
	return root + "/" + d.Installation.ID
}

// NodeSocket is where node serves control.
func (d *Dir) NodeSocket() string { return d.RunDir() + "/node.sock" }

// FDSocket is where node hands descriptors to the gateway.
func (d *Dir) FDSocket() string { return d.RunDir() + "/fd.sock" }

// GatewaySocket is where the gateway serves control.
func (d *Dir) GatewaySocket() string { return d.RunDir() + "/gateway.sock" }

// MachineRunDir is the private directory for one machine's VMM sockets (0700, root).
func (d *Dir) MachineRunDir(id sandbox.ID) string { return d.RunDir() + "/vm/" + string(id) }
