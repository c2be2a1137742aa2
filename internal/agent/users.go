package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/sandbox"
)

// account is a user of the guest with everything a process of that user gets.
type account struct {
	name   string
	uid    int
	gid    int
	groups []int // supplementary
	home   string
}

var (
	errUserUnknown = errors.New("no such user")
	errUserRefused = errors.New("this agent runs without privileges and cannot become that user")
)

// maxDatabase bounds what is read of passwd and group: both belong to the guest.
const maxDatabase = 4 << 20

// userDatabase reads passwd and group of one directory anew at each look-up, since guests change them.
type userDatabase struct {
	dir  string
	only *Only // nil: every user that this process can become
}

// self is the uid that "" stands for: root, unless the agent has no privileges.
func (db userDatabase) self() int {
	if db.only != nil {
		return int(db.only.UID)
	}
	return os.Geteuid()
}

// lookup finds a user by name or decimal uid; "" is root. A uid that passwd does not have stands for itself, and so
// does root. An agent without privileges knows "" as the user it runs as, refuses every other uid
// (errUserRefused), and says errUserUnknown only for names that do not exist.
func (db userDatabase) lookup(user string) (account, error) {
	lines, err := db.read("passwd")
	if err != nil {
		return account{}, err
	}
	if user == "" {
		user = strconv.Itoa(db.self())
	}
	a, err := findAccount(lines, user)
	if err != nil {
		return account{}, err
	}
	if db.only != nil || !privileged() {
		if a.uid != db.self() {
			return account{}, fmt.Errorf("user %q: %w", user, errUserRefused)
		}
		if db.only != nil {
			a.gid = int(db.only.GID)
		}
		return a, nil
	}
	groups, err := db.read("group")
	if err != nil {
		return account{}, err
	}
	a.groups = memberships(groups, a)
	return a, nil
}

// findAccount looks a user up in passwd lines.
func findAccount(lines [][]string, user string) (account, error) {
	uid, numeric := parseID(user)
	for _, f := range lines {
		a, ok := parseAccount(f)
		if ok && (a.name == user || numeric && a.uid == uid) {
			return a, nil
		}
	}
	switch {
	case user == "root" || numeric && uid == 0:
		return account{name: "root", home: "/root"}, nil
	case numeric:
		return account{name: user, uid: uid, gid: uid, home: "/"}, nil
	}
	return account{}, fmt.Errorf("user %q: %w", user, errUserUnknown)
}

func parseAccount(f []string) (account, bool) {
	if len(f) < 6 {
		return account{}, false
	}
	uid, ok1 := parseID(f[2])
	gid, ok2 := parseID(f[3])
	if f[0] == "" || !ok1 || !ok2 {
		return account{}, false
	}
	return account{name: f[0], uid: uid, gid: gid, home: f[5]}, true
}

// parseID accepts a decimal uid or gid, but not the one that means "unchanged" to the kernel.
func parseID(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && n < 1<<32-1
}

// maxGroups is the kernel's own limit.
const maxGroups = 65536

// memberships returns the supplementary groups of a: those that name it as a member, and its own.
func memberships(lines [][]string, a account) []int {
	groups := []int{a.gid}
	for _, f := range lines {
		if len(f) < 4 || len(groups) == maxGroups {
			continue
		}
		gid, ok := parseID(f[2])
		if !ok || gid == a.gid {
			continue
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member == a.name {
				groups = append(groups, gid)
				break
			}
		}
	}
	return groups
}

// read returns the fields of each line; a missing file has none. A special file in its place is refused, so that it
// cannot hold us up.
func (db userDatabase) read(name string) ([][]string, error) {
	f, err := os.OpenFile(filepath.Join(db.dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the user database: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalidState, Message: "read the user database: " + name + " is not a regular file",
			Remedy: "put a regular file in its place"}
	}
	content, err := io.ReadAll(io.LimitReader(f, maxDatabase))
	if err != nil {
		return nil, fmt.Errorf("read the user database: %w", err)
	}
	var lines [][]string
	sc := bufio.NewScanner(bytes.NewReader(content))
	sc.Buffer(nil, maxDatabase+1)
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && line[0] != '#' {
			lines = append(lines, strings.Split(line, ":"))
		}
	}
	return lines, nil
}

// homeDir is the home directory if it is one, else /.
func (a account) homeDir() string {
	if st, err := os.Stat(a.home); filepath.IsAbs(a.home) && err == nil && st.IsDir() {
		return a.home
	}
	return "/"
}
