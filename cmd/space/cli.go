package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/space-sandbox/space/client"
	"github.com/space-sandbox/space/internal/datadir"
)

const (
	defaultURL = client.DefaultURL
	maxKeyFile = 4 << 10
	allPages   = 100 // items asked for at once
)

// cli is what the client verbs share.
type cli struct {
	std
	dataDirFlag string
	url         string
	output      string
}

func (c *cli) check() error {
	if c.output != "text" && c.output != "json" {
		return &usageError{err: fmt.Errorf("-o %s: only text and json are known", c.output)}
	}
	return nil
}

func (c *cli) json() bool { return c.output == "json" }

// client returns the API's client. A key that cannot be found is no error yet: the server says what it needs.
func (c *cli) client() *client.Client {
	key := os.Getenv("SPACE_API_KEY")
	if key == "" {
		key = adminKey((&datadir.Dir{Path: c.dataDirFlag}).AdminKeyFile())
	}
	return client.New(c.url, key)
}

func adminKey(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// printJSON writes one JSON document, as the API has it.
func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// answer prints what a call gave, as JSON or as text.
func answer[T any](c *cli, v T, err error, text func(*cli, T) error) error {
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(v)
	}
	return text(c, v)
}

// table writes rows under a head, in columns.
func (c *cli) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = plain(cell)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	return w.Flush()
}

// list writes names and values, leaving out what is empty.
func (c *cli) list(pairs ...[2]string) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, p := range pairs {
		if p[1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", p[0], plain(p[1]))
		}
	}
	return w.Flush()
}

// plain takes control characters out of text that came from elsewhere, so that it cannot play with the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n) }

// onTerminal reports whether progress may be shown on w.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// pairs reads KEY=VALUE arguments.
func pairs(flag string, args []string) (map[string]string, error) {
	var m map[string]string
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, &usageError{err: fmt.Errorf("--%s %s: want KEY=VALUE", flag, arg)}
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
	}
	return m, nil
}

// every runs do for each argument, goes on after errors and returns them all. An exitStatus, as after Ctrl-C, ends it.
func every(args []string, do func(string) error) error {
	var errs []error
	for _, arg := range args {
		err := do(arg)
		if err != nil {
			errs = append(errs, err)
		}
		if _, left := errors.AsType[exitStatus](err); left {
			break
		}
	}
	return errors.Join(errs...)
}
