package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

const (
	userName = "user"
	userID   = 1000
	userHome = "/home/" + userName
	// imageEpoch is the time written into images: 2026-01-01.
	imageEpoch = 1767225600
)

// finishRoot turns a tree of packages into a template: users, names, nothing that is of one machine.
func finishRoot(ctx context.Context, r Recipe, dir string) error {
	for _, step := range r.finish {
		if err := runChild(inNewRoot(ctx, dir, step.argv), nil); err != nil {
			return fmt.Errorf("%s: %w", step.about, err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	defer root.Close()
	for _, name := range append(r.strip, machineFiles()...) {
		if err := root.RemoveAll(name); err != nil {
			return fmt.Errorf("finish: %w", err)
		}
	}
	if err := cleanDirs(root, "tmp", "run", "var/tmp", "var/log/apt"); err != nil {
		return err
	}
	if err := writeUsers(r, root); err != nil {
		return err
	}
	return writeConfig(r, root)
}

// machineFiles are those that must differ between machines, or say something about the host that built the image.
func machineFiles() []string {
	return []string{"etc/machine-id", "var/lib/dbus/machine-id", "var/lib/systemd/random-seed", "etc/ssh/ssh_host_rsa_key",
		"etc/ssh/ssh_host_ecdsa_key", "etc/ssh/ssh_host_ed25519_key", "etc/hostname", "etc/resolv.conf", "etc/apt/apt.conf.d/99mmdebstrap",
		"etc/dpkg/dpkg.cfg.d/99mmdebstrap",
		"etc/apt/sources.list.d/0000mmdebstrap.list", "etc/apt/sources.list", "var/log/dpkg.log", "var/log/bootstrap.log", "var/log/alternatives.log",
		"var/log/apt", "var/cache/ldconfig/aux-cache", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-"}
}

func cleanDirs(root *os.Root, dirs ...string) error {
	for _, dir := range dirs {
		list, err := fs.ReadDir(root.FS(), dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		for _, e := range list {
			if err := root.RemoveAll(path.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("finish: %w", err)
			}
		}
	}
	return nil
}

// writeUsers adds the workload user. Files that the packages did not make (nothing was configured) start with root.
func writeUsers(r Recipe, root *os.Root) error {
	id := strconv.Itoa(userID)
	files := []struct {
		name, start, line string
		mode              fs.FileMode
	}{
		{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			userName + ":x:" + id + ":" + id + "::" + userHome + ":" + r.shell, 0o644},
		{"etc/group", "root:x:0:\ntty:x:5:\ndisk:x:6:\nnogroup:x:65534:\n", userName + ":x:" + id + ":", 0o644},
		{"etc/shadow", "root:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n", userName + ":!:19000:0:99999:7:::", 0o640},
		{"etc/gshadow", "root:*::\nnogroup:*::\n", userName + ":!::", 0o640},
	}
	for _, f := range files {
		old, err := root.ReadFile(f.name)
		if errors.Is(err, fs.ErrNotExist) {
			old, err = []byte(f.start), nil
		}
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		if !strings.HasPrefix(string(old), userName+":") && !strings.Contains(string(old), "\n"+userName+":") {
			old = append(old, f.line+"\n"...)
		}
		if err := replaceFile(root, f.name, string(old), f.mode); err != nil {
			return err
		}
	}
	return writeHome(root)
}

// writeHome makes the home directory from the skeleton.
func writeHome(root *os.Root) error {
	home := strings.TrimPrefix(userHome, "/")
	if err := root.MkdirAll(home, 0o755); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	list, err := fs.ReadDir(root.FS(), "etc/skel")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("finish: %w", err)
	}
	for _, e := range list {
		data, err := root.ReadFile(path.Join("etc/skel", e.Name()))
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		name := path.Join(home, e.Name())
		if err := replaceFile(root, name, string(data), 0o644); err != nil {
			return err
		}
		if err := root.Lchown(name, userID, userID); err != nil {
			return fmt.Errorf("finish: %w", err)
		}
	}
	return root.Lchown(home, userID, userID)
}

func writeConfig(r Recipe, root *os.Root) error {
	files := []struct {
		name, text string
		mode       fs.FileMode
	}{
		{"etc/machine-id", "", 0o444},
		{"etc/hostname", "sandbox\n", 0o644},
		{"etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n", 0o644},
		{"etc/resolv.conf", "", 0o644},
		// myhostname answers for whatever name the machine gets; a template that has not got it goes on to the next.
		{"etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files myhostname dns\nservices: files\nprotocols: files\n", 0o644},
		{"etc/default/locale", "LANG=C.UTF-8\n", 0o644},
		{"etc/fstab", "", 0o644},
	}
	if r.variant == "apt" {
		const signed = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/"
		files = append(files, struct {
			name, text string
			mode       fs.FileMode
		}{"etc/apt/sources.list", signed + "debian " + release + " main\n" + signed + "debian " + release + "-updates main\n" +
			signed + "debian-security " + release + "-security main\n", 0o644})
	}
	if r.sudo {
		files = append(files, struct {
			name, text string
			mode       fs.FileMode
		}{"etc/sudoers.d/" + userName, userName + " ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440})
	}
	for _, f := range files {
		if err := replaceFile(root, f.name, f.text, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile writes a root-owned file in place of whatever had the name.
func replaceFile(root *os.Root, name, text string, mode fs.FileMode) (err error) {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("finish: %w", err)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return f.Chmod(mode) // the umask is not ours
}
