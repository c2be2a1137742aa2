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

// addCompletion makes the shells complete arguments from what the API knows, by what a command's Use says of its first
// argument: whoever adds a command gets it completed. A server that does not answer gives nothing: a shell has no place
// for errors.
func addCompletion(cli *cli, root *cobra.Command) {
	for _, cmd := range root.Commands() {
		addCompletion(cli, cmd)
	}
	if names := completed(root.Use); names != nil && root.ValidArgsFunction == nil {
		root.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return ask(cmd.Context(), cli, names, args, toComplete), cobra.ShellCompDirectiveNoFileComp
		}
	}
	switch root.CommandPath() {
	case "space cp":
		completeCopy(cli, root)
	case "space create":
		_ = root.RegisterFlagCompletionFunc("template", func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return ask(cmd.Context(), cli, templates, nil, toComplete), cobra.ShellCompDirectiveNoFileComp
		}) // an error would mean that there is no such flag, or two functions: the tests would see it
	}
}

// completed gives what the first argument of a command is, nil for what the API does not know.
func completed(use string) complete {
	_, args, _ := strings.Cut(use, " ")
	argument, _, _ := strings.Cut(args, " ")
	switch argument {
	case "SANDBOX":
		return first(sandboxes)
	case "SANDBOX...":
		return sandboxes
	case "OPERATION":
		return first(operations)
	case "TEMPLATE":
		return first(templates)
	case "TEMPLATE...":
		return templates
	case "COMMAND":
		return first(commands)
	}
	return nil
}

// completeCopy completes SANDBOX:, and lets the shell add local files.
func completeCopy(cli *cli, cp *cobra.Command) {
	cp.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if strings.ContainsAny(toComplete, "/:") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var out []string
		for _, name := range ask(cmd.Context(), cli, sandboxes, nil, toComplete) {
			out = append(out, name+":")
		}
		return out, cobra.ShellCompDirectiveNoSpace
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

// maxAsked is how many sandboxes are asked for their commands at one press of a key.
const maxAsked = 10

// commands are the newest sessions of the newest sandboxes.
func commands(ctx context.Context, c *client.Client, _ []string) []string {
	boxes, err := c.ListSandboxes(ctx, client.SandboxQuery{Page: client.Page{Limit: maxAsked}})
	if err != nil {
		return nil
	}
	var out []string
	for _, box := range boxes.Items {
		list, err := c.ListCommands(ctx, box.ID, client.CommandQuery{})
		if err != nil {
			continue // it may be gone already
		}
		out = append(out, namesOf(list.Items, func(cmd apiv1.Command) []string { return []string{cmd.ID} })...)
	}
	return out
}

func operations(ctx context.Context, c *client.Client, _ []string) []string {
	list, err := c.ListOperations(ctx, client.OperationQuery{Page: client.Page{Limit: allPages}})
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
