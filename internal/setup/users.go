package setup

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"

	"github.com/space-sandbox/space/internal/hostprog"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Names of the two users.
const (
	ControlUser = "space"
	GatewayUser = "space-gw"
)

// maxSystemUID is where people's accounts begin.
const maxSystemUID = 999

// users makes the two users and what belongs to them in the data directory.
func (r *run) users(ctx context.Context) (string, error) {
	_, release, err := r.host.lockConfig(ctx) // useradd's own lock fails instead of waiting
	if err != nil {
		return "", err
	}
	defer release()
	control, err := r.host.EnsureUser(ctx, ControlUser)
	if err != nil {
		return "", err
	}
	r.host.at("users: control")
	gateway, err := r.host.EnsureUser(ctx, GatewayUser)
	if err != nil {
		return "", err
	}
	r.record.ControlUID, r.record.ControlGID = control.UID, control.GID
	r.record.GatewayUID, r.record.GatewayGID = gateway.UID, gateway.GID
	err = ensureDir(r.root, "control", 0o700, owner{control.UID, control.GID})
	return fmt.Sprintf("%s %d, %s %d", ControlUser, control.UID, GatewayUser, gateway.UID), err
}

// Account is a user of the host.
type Account struct{ UID, GID uint32 }

// ensureSystemUser finds a system user or makes it, with a group of its own and without a login.
func ensureSystemUser(ctx context.Context, name string) (Account, error) {
	account, err := lookupUser(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); !unknown {
		return account, err
	}
	group := "--user-group"
	if _, err := user.LookupGroup(name); err == nil { // left by a useradd that was cut off
		group = "--gid=" + name
	}
	cmd := exec.CommandContext(ctx, hostprog.Path("useradd"), "--system", group, "--no-create-home", "--home-dir", "/nonexistent",
		"--shell", "/usr/sbin/nologin", "--comment", "SPACE", name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return Account{}, fmt.Errorf("useradd %s: %w: %s", name, err, firstBytes(out))
	}
	return lookupUser(name)
}

func lookupUser(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, err
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return Account{}, fmt.Errorf("user %s: %w", name, err)
	}
	if uid == 0 || uid > maxSystemUID {
		return Account{}, &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "the user " + name + " exists and is not a system user",
			Cause: fmt.Sprintf("its uid is %d", uid), Remedy: "rename that account: SPACE needs this name for itself"}
	}
	return Account{UID: uint32(uid), GID: uint32(gid)}, nil
}

func firstBytes(out []byte) string { return fmt.Sprintf("%.500s", out) }
