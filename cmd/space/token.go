package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func newTokenCmd(cli *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make tokens that open one sandbox"}
	cmd.AddCommand(newTokenCreateCmd(cli))
	return cmd
}

func newTokenCreateCmd(cli *cli) *cobra.Command {
	var scopes []string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create SANDBOX --scope SCOPE,...",
		Short: "Make a token for a sandbox, and print it",
		Long: `Makes a token that opens one sandbox and nothing else, and prints it. It is used like a key (SPACE_API_KEY), until it
expires or the sandbox is deleted. It cannot be shown again.

Scopes: commands (exec, shell, attach, logs), files (cp). Every token can show its sandbox.`,
		Example: "  space token create web --scope commands,files --ttl 8h\n  SPACE_API_KEY=$(space token create web --scope files) space cp report.pdf web:",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(scopes) == 0 {
				return &usageError{err: errors.New("--scope is missing: commands, files, or both")}
			}
			seconds := ttl.Seconds()
			made, err := cli.client().CreateToken(cmd.Context(), args[0], apiv1.CreateToken{Scopes: scopes, TTLSeconds: &seconds})
			return answer(cli, made, err, printToken)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&scopes, "scope", nil, "what it may be used for: commands, files (several with commas, or repeated)")
	f.DurationVar(&ttl, "ttl", time.Hour, "it expires after so long, at most 168h (seven days)")
	// An error would mean that there is no such flag.
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"commands", "files"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printToken prints nothing but the token, for $(…).
func printToken(cli *cli, made *apiv1.SandboxToken) error {
	_, err := fmt.Fprintln(cli.out, plain(made.Token))
	return err
}
