package template

import (
	"slices"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Recipe says how one of the templates that come with SPACE is made.
type Recipe struct {
	Name string // "mini"

	variant  string // of mmdebstrap
	packages []string
	strip    []string // below the root, removed before the image is made
	shell    string   // of the user
	sudo     bool
	env      map[string]string
	journal  int           // MiB
	finish   []chrootStep  // run inside the new root
	deadline time.Duration // of the whole build
	// space is what a build needs for a while on the file system of the work directory, in bytes.
	space uint64
}

// chrootStep is one program run inside the new root, after the packages are there.
type chrootStep struct {
	about string
	argv  []string
}

// precompile writes the byte code that Debian's maintainer scripts would have written.
const precompile = `import os, py_compile
for top, _, names in os.walk("/usr/lib/python3.11"):
    for name in sorted(names):
        if name.endswith(".py"):
            py_compile.compile(os.path.join(top, name), quiet=2)
`

const userPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Recipes returns the templates that come with SPACE.
func Recipes() []Recipe { return []Recipe{mini(), base()} }

// RecipeByName finds one of Recipes.
func RecipeByName(name string) (Recipe, error) {
	all := Recipes()
	i := slices.IndexFunc(all, func(r Recipe) bool { return r.Name == name })
	if i < 0 {
		return Recipe{}, &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "there is no recipe for this template",
			Cause: name, Remedy: "choose from mini and base"}
	}
	return all[i], nil
}

// mini is the smallest thing that does work: a shell, coreutils and Python's core. The packages are unpacked and not
// configured, since none of them needs it.
func mini() Recipe {
	return Recipe{
		Name:     "mini",
		variant:  "extract",
		packages: []string{"base-files", "coreutils", "dash", "libc-bin", "netbase", "python3-minimal"},
		strip: []string{"etc/apt", "etc/dpkg", "etc/cron.daily", "etc/logrotate.d", "usr/share/bash-completion", "usr/share/bug",
			"usr/share/debconf", "usr/share/doc", "usr/share/dpkg", "usr/share/info", "usr/share/lintian", "usr/share/locale",
			"usr/share/man", "usr/share/menu", "usr/share/perl5", "usr/share/pixmaps", "usr/share/polkit-1", "var/lib/dpkg",
			"var/cache/apt", "var/lib/apt", "var/cache/debconf", "usr/share/zoneinfo"},
		shell:   "/bin/sh",
		env:     map[string]string{"LANG": "C.UTF-8", "PATH": userPath},
		journal: 4,
		finish: []chrootStep{
			{"index the libraries", []string{"/sbin/ldconfig"}},
			{"compile Python's library", []string{"/usr/bin/python3.11", "-c", precompile}},
		},
		deadline: 20 * time.Minute,
		space:    256 * mib,
	}
}

// base is what people and agents expect of a machine.
func base() Recipe {
	return Recipe{
		Name:    "base",
		variant: "apt",
		packages: []string{"bash", "build-essential", "ca-certificates", "curl", "git", "libnss-myhostname", "netbase", "nodejs",
			"npm", "procps", "python-is-python3", "python3", "python3-pip", "python3-venv", "sudo"},
		strip:    []string{"usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists"},
		shell:    "/bin/bash",
		sudo:     true,
		env:      map[string]string{"LANG": "C.UTF-8", "PATH": userPath},
		journal:  64,
		deadline: time.Hour,
		space:    2560 * mib,
	}
}
