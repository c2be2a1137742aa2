package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// completionPatience is how long a key press may wait for the API.
const completionPatience = 2 * time.Second

// complete gives what the argument under the cursor may be; args are those before it.
type complete func(ctx context.Context, c *client.Client, args []string) []string

// addCompletion makes the shells complete arguments from what the API knows. A server that does not answer gives nothing:
// a shell has no place for errors.
func addCompletion(cli *cli, root *cobra.Command) {
	for path, names := range map[string]complete{
		"rm":            sandboxes,
		"show":          first(sandboxes),
		"exec":          first(sandboxes),
		"op show":       first(operations),
		"op wait":       first(operations),
		"op cancel":     first(operations),
		"template show": first(templates),
	} {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil || cmd.ValidArgsFunction != nil {
			continue
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return ask(cmd.Context(), cli, names, args, toComplete), cobra.ShellCompDirectiveNoFileComp
		}
	}
	if cp, _, err := root.Find([]string{"cp"}); err == nil {
		cp.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			var out []string
			if !strings.ContainsAny(toComplete, "/:") {
				for _, name := range ask(cmd.Context(), cli, sandboxes, nil, toComplete) {
					out = append(out, name+":")
				}
			}
			return out, cobra.ShellCompDirectiveNoSpace // and the shell adds local files
		}
	}
	if create, _, err := root.Find([]string{"create"}); err == nil && create.Flags().Lookup("template") != nil {
		_ = create.RegisterFlagCompletionFunc("template", func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return ask(cmd.Context(), cli, templates, nil, toComplete), cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// ask returns the names that begin with what has been typed.
func ask(ctx context.Context, cli *cli, names complete, args []string, typed string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	var out []string
	for _, name := range names(ctx, cli.client(), args) {
		if strings.HasPrefix(name, typed) {
			out = append(out, name)
		}
	}
	return out
}

// first completes only the first argument.
func first(names complete) complete {
	return func(ctx context.Context, c *client.Client, args []string) []string {
		if len(args) > 0 {
			return nil
		}
		return names(ctx, c, args)
	}
}

// sandboxes are the names of live ones, or the ids of those without a name.
func sandboxes(ctx context.Context, c *client.Client, args []string) []string {
	list, err := c.ListSandboxes(ctx, client.SandboxQuery{Page: client.Page{Limit: allPages}})
	if err != nil {
		return nil
	}
	given := map[string]bool{}
	for _, arg := range args {
		given[arg] = true
	}
	var out []string
	for _, box := range list.Items {
		name := box.Name
		if name == "" {
			name = box.ID
		}
		if !given[name] {
			out = append(out, name)
		}
	}
	return out
}

func operations(ctx context.Context, c *client.Client, _ []string) []string {
	list, err := c.ListOperations(ctx, client.Page{Limit: allPages})
	if err != nil {
		return nil
	}
	return namesOf(list.Items, func(o apiv1.Operation) []string { return []string{o.ID} })
}

func templates(ctx context.Context, c *client.Client, _ []string) []string {
	list, err := c.ListTemplates(ctx, client.Page{Limit: allPages})
	if err != nil {
		return nil
	}
	return namesOf(list.Items, func(t apiv1.Template) []string {
		var out []string
		for _, tag := range t.Tags {
			if tag == "latest" {
				out = append(out, t.Name)
				continue
			}
			out = append(out, t.Name+":"+tag)
		}
		return out
	})
}

func namesOf[T any](items []T, names func(T) []string) []string {
	var out []string
	for _, item := range items {
		out = append(out, names(item)...)
	}
	return out
}
