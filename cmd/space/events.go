package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newEventsCmd(cli *cli) *cobra.Command {
	var query client.EventQuery
	var since int64
	var limit int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow what changes",
		Long: `Follows what changes, from now on, until it is ended: one line for each event, or with -o json one object a line.
Restarts of the server are borne; no event is lost or shown twice. Events are kept for 24 hours: --since goes back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("since") {
				query.Since = &since
			}
			return followEvents(cmd, cli, query, limit)
		},
	}
	f := cmd.Flags()
	f.StringVar(&query.Sandbox, "sandbox", "", "only what concerns this sandbox (name or id)")
	f.StringSliceVar(&query.Types, "type", nil, "only these types: operation, sandbox, lease, command, template")
	f.Int64Var(&since, "since", 0, "go on after the event of this number; 0: from the oldest that is kept")
	f.IntVarP(&limit, "limit", "n", 0, "end after so many events")
	return cmd
}

func followEvents(cmd *cobra.Command, cli *cli, query client.EventQuery, limit int) error {
	stream, err := cli.client().Events(cmd.Context(), query)
	if err != nil {
		return err
	}
	defer stream.Close()
	for n := 0; limit <= 0 || n < limit; {
		e, err := stream.Next()
		if missed, ok := errors.AsType[*client.EventsMissed](err); ok {
			fmt.Fprintf(cli.err, "space: %s\n", missed)
			continue
		}
		if err != nil {
			return err
		}
		n++
		if err := printEvent(cli, e); err != nil {
			return err
		}
	}
	return nil
}

func printEvent(cli *cli, e apiv1.Event) error {
	if cli.json() {
		enc := json.NewEncoder(cli.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(e)
	}
	words := []string{fmt.Sprint(e.Seq), moment(&e.Time), e.Type, e.SandboxID, eventText(e)}
	_, err := fmt.Fprintln(cli.out, strings.Join(words, "  "))
	return err
}

// eventText says in a few words what has changed.
func eventText(e apiv1.Event) string {
	var o struct {
		ID, Name, Kind, State, Change, Digest string
		Reason                                *string
		Lease                                 *apiv1.Lease
		Error                                 *apiv1.Problem
	}
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return "" // of a later version; -o json has all of it
	}
	var words []string
	switch e.Type {
	case "sandbox":
		words = []string{o.Name, o.State, deref(o.Reason)}
	case "operation":
		words = []string{o.ID, o.Kind, o.State}
	case "command":
		words = []string{o.ID, o.State, deref(o.Reason)}
	case "template":
		words = []string{o.Name, o.Digest, o.State}
	case "lease":
		words = []string{o.Change, leaseText(o.Lease)}
	}
	if o.Error != nil {
		words = append(words, o.Error.Message)
	}
	text := strings.Join(strings.Fields(strings.Join(words, " ")), " ")
	return plain(text)
}
