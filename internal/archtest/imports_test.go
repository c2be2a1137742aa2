// Package archtest checks that the rooms import each other as docs/architecture.md says.
package archtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/space-sandbox/space/"

// everybody may import these.
func free(pkg string) bool {
	return pkg == "internal/sandbox" || pkg == "internal/guestnet" || strings.HasPrefix(pkg, "api/")
}

// TestImports compares the imports of all packages with the table in docs/architecture.md, both ways: an import that
// is not allowed and a permission that nobody uses are faults.
func TestImports(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	allowed := readTable(t, filepath.Join(root, "docs", "architecture.md"))
	used := map[string]map[string]bool{}
	for _, p := range listPackages(t, root) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "api/") {
			continue
		}
		row, ok := findRow(allowed, name)
		if !ok {
			t.Errorf("%s is not in the table of docs/architecture.md", name)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module)
			if !ours || free(dep) || sameRoom(row, dep) {
				continue
			}
			if entry, ok := permits(allowed[row], dep); ok {
				if used[row] == nil {
					used[row] = map[string]bool{}
				}
				used[row][entry] = true
				continue
			}
			t.Errorf("%s imports %s, which docs/architecture.md does not allow", name, dep)
		}
	}
	for row, deps := range allowed {
		for _, d := range deps {
			if !used[row][d] {
				t.Errorf("docs/architecture.md allows %s to import %s, but it does not", row, d)
			}
		}
	}
}

// sameRoom reports whether dep belongs to the row that covers a package and all below it.
func sameRoom(row, dep string) bool {
	base, wild := strings.CutSuffix(row, "/*")
	return wild && (dep == base || strings.HasPrefix(dep, base+"/"))
}

func permits(entries []string, dep string) (string, bool) {
	for _, e := range entries {
		base, wild := strings.CutSuffix(e, "/*")
		if e == dep || wild && (dep == base || strings.HasPrefix(dep, base+"/")) {
			return e, true
		}
	}
	return "", false
}

// findRow prefers the exact row over the longest pattern.
func findRow(table map[string][]string, name string) (string, bool) {
	if _, ok := table[name]; ok {
		return name, true
	}
	best := ""
	for row := range table {
		if sameRoom(row, name) && len(row) > len(best) {
			best = row
		}
	}
	return best, best != ""
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T, root string) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// readTable reads the rows between the two markers: | package | imports, with commas | purpose |.
func readTable(t *testing.T, path string) map[string][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table := map[string][]string{}
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		switch {
		case line == "<!-- imports:begin -->":
			inside = true
		case line == "<!-- imports:end -->":
			return table
		case inside && strings.HasPrefix(line, "| `"):
			cells := strings.Split(line, "|")
			row := strings.Trim(cells[1], " `")
			table[row] = nil
			for dep := range strings.SplitSeq(cells[2], ",") {
				if dep = strings.Trim(dep, " `"); dep != "" && dep != "–" {
					table[row] = append(table[row], dep)
				}
			}
			if !slices.IsSorted(table[row]) {
				t.Errorf("imports of %s are not in order", row)
			}
		}
	}
	t.Fatal("docs/architecture.md has no table between its markers")
	return nil
}
