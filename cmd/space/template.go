package main

import (
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newTemplateCmd(cli *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Manage templates: what sandboxes are made from"}
	cmd.AddCommand(newTemplateLsCmd(cli), newTemplateShowCmd(cli), newTemplateImportCmd(cli), newTemplateRmCmd(cli))
	return cmd
}

func newTemplateLsCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List templates",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := whole(cmd.Context(), client.Page{}, cli.client().ListTemplates)
			if err != nil {
				return err
			}
			if cli.json() {
				return cli.printJSON(list)
			}
			var rows [][]string
			for _, t := range list.Items {
				rows = append(rows, []string{t.Name, strings.Join(t.Tags, ","), t.Digest, mib(t.SizeBytes >> 20), moment(&t.CreatedAt)})
			}
			return cli.table([]string{"NAME", "TAGS", "DIGEST", "SIZE", "CREATED (UTC)"}, rows)
		},
	}
}

func newTemplateShowCmd(cli *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "show TEMPLATE",
		Short: "Show a template, by name, name:tag or digest",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := cli.client().Template(cmd.Context(), args[0])
			return answer(cli, t, err, printTemplate)
		},
	}
}

func printTemplate(cli *cli, t *apiv1.Template) error {
	return cli.list(
		[2]string{"name", t.Name}, [2]string{"tags", strings.Join(t.Tags, ", ")}, [2]string{"digest", t.Digest},
		[2]string{"state", t.State}, [2]string{"size", mib(t.SizeBytes >> 20)}, [2]string{"disk at least", mib(int64(t.MinDiskMiB))},
		[2]string{"user", t.User}, [2]string{"workdir", t.Workdir}, [2]string{"entrypoint", strings.Join(t.Entrypoint, " ")},
		[2]string{"env", joined(t.Env)}, [2]string{"created", moment(&t.CreatedAt)},
	)
}
