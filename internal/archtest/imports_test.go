// Package archtest checks that the rooms import each other as docs/architecture.md says.
package archtest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	root     = "../.."
	module   = "github.com/space-sandbox/space/"
	document = root + "/docs/architecture.md"
)

// room is one row of the table: which packages it covers and what they may import.
type room struct {
	pattern string
	imports []string
}

// TestImports compares the imports of all packages with the table, both ways: an import that is not allowed and a
// permission that nobody uses are faults. An import must also point downwards: to a row further down.
func TestImports(t *testing.T) {
	t.Parallel()
	table := readTable(t)
	unused := map[string]bool{}
	empty := map[string]bool{}
	for _, r := range table {
		empty[r.pattern] = true
		for _, dep := range r.imports {
			unused[r.pattern+" imports "+dep] = true
		}
	}
	for pkg, deps := range readImports(t) {
		at := find(table, pkg)
		if at < 0 {
			t.Errorf("%s has no row in %s", pkg, document)
			continue
		}
		r := table[at]
		delete(empty, r.pattern)
		for _, dep := range deps {
			if free(dep) || find(table, dep) == at {
				continue
			}
			i := slices.IndexFunc(r.imports, func(allowed string) bool { return covers(allowed, dep) })
			if i < 0 {
				t.Errorf("%s imports %s, which its row in %s does not list", pkg, dep, document)
				continue
			}
			delete(unused, r.pattern+" imports "+r.imports[i])
			if find(table, dep) < at {
				t.Errorf("%s imports %s, which stands above it in %s", pkg, dep, document)
			}
		}
	}
	for permission := range unused {
		t.Errorf("%s: nobody uses the permission: %s", document, permission)
	}
	for pattern := range empty {
		t.Errorf("%s: no package belongs to the row %s", document, pattern)
	}
}

// free says what everybody may import.
func free(pkg string) bool {
	return pkg == "internal/sandbox" || pkg == "internal/guestnet" || strings.HasPrefix(pkg, "api/")
}

// covers reports whether a pattern stands for a package: itself or, with a star, also all below.
func covers(pattern, pkg string) bool {
	base, star := strings.CutSuffix(pattern, "/*")
	return pkg == base || star && strings.HasPrefix(pkg, base+"/")
}

// find gives the index of the package's row, or -1: the row of exactly that name, else the one that says most.
func find(table []room, pkg string) int {
	best := -1
	for i, r := range table {
		if r.pattern == pkg {
			return i
		}
		if covers(r.pattern, pkg) && (best < 0 || len(r.pattern) > len(table[best].pattern)) {
			best = i
		}
	}
	return best
}

// readImports gives, for every package of the module but the contracts in api, what it imports of this module: test
// files are left out, files of every build tag count. It reads the files itself, so that go test knows when a result
// that it kept is out of date.
func readImports(t *testing.T) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == "api" || name == "bin" || name == ".git" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || path.Ext(name) != ".go" {
			return nil
		}
		pkg := path.Dir(name)
		if imports[pkg] == nil {
			imports[pkg] = []string{} // known, though it may import nothing
		}
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path.Join(root, name), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			if dep, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module); ours {
				imports[pkg] = append(imports[pkg], dep)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return imports
}

// readTable reads the rows between the two markers of the document: | `pattern` | `import`, `import` | purpose |.
func readTable(t *testing.T) []room {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, after, begins := strings.Cut(string(text), "<!-- imports:begin -->\n")
	rows, _, ends := strings.Cut(after, "<!-- imports:end -->\n")
	if !begins || !ends {
		t.Fatalf("%s has no table between its markers", document)
	}
	var table []room
	for line := range strings.Lines(rows) {
		if !strings.HasPrefix(line, "| `") {
			continue // the head of the table
		}
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("%s: not three cells: %s", document, line)
		}
		r := room{pattern: strings.Trim(cells[1], " `")}
		for dep := range strings.SplitSeq(cells[2], ",") {
			if dep = strings.Trim(dep, " `"); dep != "–" {
				r.imports = append(r.imports, dep)
			}
		}
		if !slices.IsSorted(r.imports) {
			t.Errorf("%s: the imports of %s are not in order", document, r.pattern)
		}
		table = append(table, r)
	}
	return table
}
