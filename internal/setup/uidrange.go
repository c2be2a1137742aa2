package setup

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	rangesFile = "uid-ranges.json"
	hostLock   = "lock"

	// uidCount is how many uids one installation has: one for each machine and each worker.
	uidCount = 4096
	// firstUID and lastUID bound where ranges are looked for: above what is used for containers (up to 0x6fffffff),
	// below what overflows a signed number.
	firstUID = 0x70000000
	lastUID  = 0x7ffd0000
)

// idRange is one installation's claim in the host-wide list.
type idRange struct {
	ID      string `json:"id"`
	DataDir string `json:"data_dir"`
	Base    uint32 `json:"base"`
	Count   uint32 `json:"count"`
}

func (a idRange) overlaps(b idRange) bool {
	return uint64(a.Base) < uint64(b.Base)+uint64(b.Count) && uint64(b.Base) < uint64(a.Base)+uint64(a.Count)
}

// uidRange claims a range of uids that no other installation, user or container of this host has, and with it the
// installation's id.
func (r *run) uidRange(ctx context.Context) (string, error) {
	conf, release, err := r.host.lockConfig(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	claims, err := loadRanges(conf)
	if err != nil {
		return "", err
	}
	// Claims of directories that hold another installation by now, or none, are free again.
	claims = slices.DeleteFunc(claims, func(c idRange) bool { return c.DataDir != r.dir.Path && !holds(c) })
	mine, kept, err := r.chooseRange(claims)
	if err != nil {
		return "", err
	}
	// The claim is live once the record names its id; between the two writes only the lock protects it.
	if err := saveRanges(conf, append(kept, mine)); err != nil {
		return "", err
	}
	r.host.at("uid range: claimed")
	r.record.ID, r.record.UIDBase, r.record.UIDCount = mine.ID, mine.Base, mine.Count
	if err := r.saveRecord(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d to %d", mine.Base, mine.Base+mine.Count-1), nil
}

// chooseRange keeps what this installation has, or an earlier one had at this place; else it takes the first free range.
// It returns the claims of
// all others as well.
func (r *run) chooseRange(claims []idRange) (mine idRange, others []idRange, err error) {
	others = slices.Clone(claims)
	others = slices.DeleteFunc(others, func(c idRange) bool { return c.DataDir == r.dir.Path })
	if r.record.ID != "" && r.record.UIDCount != 0 {
		mine = idRange{ID: r.record.ID, DataDir: r.dir.Path, Base: r.record.UIDBase, Count: r.record.UIDCount}
		for _, c := range others {
			if c.overlaps(mine) || c.ID == mine.ID {
				return idRange{}, nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "two installations have the same uids",
					Cause:  fmt.Sprintf("%s and %s both claim %d to %d (was a data directory copied?)", c.DataDir, mine.DataDir, mine.Base, mine.Base+mine.Count-1),
					Remedy: "remove installation.json and setup.json of the copy while nothing runs from it, then run setup on it again"}
			}
		}
		return mine, others, nil
	}
	if i := slices.IndexFunc(claims, func(c idRange) bool { return c.DataDir == r.dir.Path }); i >= 0 {
		// The directory was removed. What ran from it may still run: it must not become a stranger of the new one.
		return claims[i], others, nil
	}
	used, err := r.host.usedRanges()
	if err != nil {
		return idRange{}, nil, err
	}
	mine = idRange{ID: newInstallationID(others), DataDir: r.dir.Path, Count: uidCount}
	for base := uint32(firstUID); base < lastUID; base += uidCount {
		mine.Base = base
		clash := func(c idRange) bool { return c.overlaps(mine) }
		if !slices.ContainsFunc(others, clash) && !slices.ContainsFunc(used, clash) {
			return mine, others, nil
		}
	}
	return idRange{}, nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "no range of uids is free",
		Cause: fmt.Sprintf("all of %d to %d is claimed", firstUID, lastUID), Remedy: "remove installations that are not used any more"}
}

// holds reports whether the directory of a claim still is that installation, finished or not, or may be: a damaged file
// counts, and so does what still runs though its directory was removed.
func holds(c idRange) bool {
	run := datadir.Dir{Installation: datadir.Installation{ID: c.ID}}
	if _, err := os.Lstat(run.RunDir()); err == nil {
		return true
	}
	if in := (datadir.Dir{Path: c.DataDir}); pool.CheckOrphan(in.PoolDir()) != nil {
		return true
	}
	for _, name := range []string{installationFile, recordFile} {
		data, err := os.ReadFile(filepath.Join(c.DataDir, name))
		if err != nil {
			continue
		}
		var in datadir.Installation
		if json.Unmarshal(data, &in) != nil || in.ID == c.ID {
			return true
		}
	}
	return false
}

func newInstallationID(others []idRange) string {
	for {
		id := strings.ToLower(rand.Text()[:6])
		if !slices.ContainsFunc(others, func(c idRange) bool { return c.ID == id }) {
			return id
		}
	}
}

func loadRanges(conf *os.Root) ([]idRange, error) {
	data, err := conf.ReadFile(rangesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("uid ranges: %w", err)
	}
	var claims []idRange
	if err := json.Unmarshal(data, &claims); err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the list of uid ranges is damaged",
			Cause: conf.Name() + "/" + rangesFile + ": " + err.Error(), Remedy: "restore it; without it two installations could get the same uids", Err: err}
	}
	return claims, nil
}

func saveRanges(conf *os.Root, claims []idRange) error {
	slices.SortFunc(claims, func(a, b idRange) int { return strings.Compare(a.DataDir, b.DataDir) })
	data, err := json.MarshalIndent(claims, "", "  ")
	if err != nil {
		return fmt.Errorf("uid ranges: %w", err)
	}
	return writeFile(conf, rangesFile, append(data, '\n'), 0o644, owner{})
}

// lockConfig opens the host-wide directory of all installations under its lock.
func (h Host) lockConfig(ctx context.Context) (*os.Root, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(h.ConfigDir, 0o755); err != nil { // as all of /etc
		return nil, nil, fmt.Errorf("host configuration: %w", err)
	}
	conf, err := os.OpenRoot(h.ConfigDir)
	if err != nil {
		return nil, nil, fmt.Errorf("host configuration: %w", err)
	}
	f, err := conf.OpenFile(hostLock, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("host configuration: %w", err), conf.Close())
	}
	// Held for moments only.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("host configuration: %w", err), f.Close(), conf.Close())
	}
	return conf, func() { f.Close(); conf.Close() }, nil
}

// usedRanges are the ids that users and containers of this host have.
func (h Host) usedRanges() ([]idRange, error) {
	var used []idRange
	for _, name := range []string{"passwd", "group", "subuid", "subgid"} {
		f, err := os.Open(filepath.Join(h.EtcDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("users of this host: %w", err)
		}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if r, ok := parseIDLine(name, scan.Text()); ok {
				used = append(used, r)
			}
		}
		f.Close()
	}
	return used, nil
}

// parseIDLine reads name:x:id… (passwd, group) or name:base:count (subuid, subgid).
func parseIDLine(file, line string) (idRange, bool) {
	fields := strings.Split(line, ":")
	if len(fields) < 3 {
		return idRange{}, false
	}
	base, count := fields[2], "1"
	if strings.HasPrefix(file, "sub") {
		base, count = fields[1], fields[2]
	}
	b, errBase := strconv.ParseUint(base, 10, 32)
	c, errCount := strconv.ParseUint(count, 10, 32)
	if errBase != nil || errCount != nil {
		return idRange{}, false
	}
	return idRange{Base: uint32(b), Count: uint32(c)}, true
}

// saveRecord writes down what is decided so far; a finished installation has it already.
func (r *run) saveRecord() error {
	if _, err := r.root.Lstat(installationFile); err == nil {
		return r.record.save(r.root, installationFile, 0o644)
	}
	return r.record.save(r.root, recordFile, 0o600)
}
