package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newManCmd writes the manual pages, one for each command that is for people.
func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writeManuals(args[0], cmd.Root())
		},
	}
}

func writeManuals(dir string, cmd *cobra.Command) error {
	if !forPeople(cmd) {
		return nil
	}
	var page strings.Builder
	writeManual(&page, cmd)
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(page.String()), 0o644); err != nil { //nolint:gosec // manual pages are for all
		return err
	}
	var errs []error
	for _, sub := range cmd.Commands() {
		errs = append(errs, writeManuals(dir, sub))
	}
	return errors.Join(errs...)
}

func forPeople(cmd *cobra.Command) bool { return !cmd.Hidden && cmd.Name() != "help" }

// writeManual writes the page of one command in the form of man(7).
func writeManual(w io.Writer, cmd *cobra.Command) {
	page := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	fmt.Fprintf(w, ".TH %q 1 \"\" %q \"SPACE\"\n", strings.ToUpper(page), "space "+version)
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", roff(page), roff(cmd.Short))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(w, ".SH DESCRIPTION\n%s", paragraphs(text))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprint(w, ".SH COMMANDS\n")
		for _, sub := range cmd.Commands() {
			if forPeople(sub) {
				fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
			}
		}
	}
	writeFlags(w, "OPTIONS", cmd.NonInheritedFlags())
	writeFlags(w, "OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprintf(w, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(cmd.Example))
	}
	var see []string
	if cmd.HasParent() {
		see = append(see, strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, sub := range cmd.Commands() {
		if forPeople(sub) {
			see = append(see, page+"-"+sub.Name()+"(1)")
		}
	}
	if len(see) > 0 {
		fmt.Fprintf(w, ".SH SEE ALSO\n%s\n", roff(strings.Join(see, ", ")))
	}
}

func writeFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(w, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	})
}

// paragraphs keeps blank lines as breaks between paragraphs.
func paragraphs(text string) string {
	return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") + "\n"
}

// roff takes away the meaning that text may have for the formatter.
func roff(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	text = strings.ReplaceAll(text, "-", `\-`)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
