// Package hostprog finds the programs of the host that setup uses. They are looked for in a fixed list of directories
// that only root can change, never in PATH: a search path is an attack path, and that of a plain su lacks half of them.
package hostprog

import (
	"os"
	"path/filepath"
	"strings"
)

func directories() []string { return []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} }

// Find returns the absolute path of a program.
func Find(name string) (path string, found bool) {
	for _, dir := range directories() {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// Path is Find for a program that is about to be started: when it is missing, starting the path fails and names it.
func Path(name string) string {
	if path, found := Find(name); found {
		return path
	}
	return filepath.Join("/usr/bin", name)
}

// Env is the environment for such programs: ours (proxies, mirrors), with the fixed directories as PATH, and more.
func Env(more ...string) []string {
	env := append(os.Environ(), "PATH="+strings.Join(directories(), ":"))
	return append(env, more...)
}
