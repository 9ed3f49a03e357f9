package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

func (a *app) waitersCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "waiters [KEY]",
		Short: "List the waiting calls, ordered by key and by queue position",
		Long: `List the calls of all pods that wait for a key, or without KEY all waiting calls of the
namespace, ordered by key and by queue position.

MODE is the mode of the awaited lock: "exclusive", "shared", or "shared of 5" with a limit of five.`,
		Example: `  locksidecar waiters backup:nightly
  locksidecar waiters --prefix backup: --limit 20
  locksidecar waiters -o json | jq -r '.waiters[] | select(.waiting_ms > 60000) | .pod'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("prefix") {
				return usagef("KEY and --prefix do not go together")
			}
			return exactly(min(len(args), 1))(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.limit < 0 {
				return badLimit(flags.limit)
			}
			path := "/v1/waiters"
			if len(args) == 1 {
				path = client.LockPath(args[0]) + "/waiters"
			}
			return listWaiters(cmd, a.newClient(), path, flags)
		},
	}
	addJSON(cmd)
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().IntVar(&flags.limit, "limit", 0, "list at most so many; 0: all")
	return cmd
}

func listWaiters(cmd *cobra.Command, c *client.Client, path string, flags listFlags) error {
	all := client.Page{Waiters: []json.RawMessage{}}
	next, err := c.Pages(path, flags.query(), flags.limit, func(p *client.Page) error {
		all.Waiters = append(all.Waiters, p.Waiters...)
		return nil
	})
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return writeJSON(cmd.OutOrStdout(), struct {
			Waiters    []json.RawMessage `json:"waiters"`
			NextCursor *string           `json:"next_cursor"`
		}{all.Waiters, next})
	}
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tPOSITION\tMODE\tPOD\tSESSION\tOWNER\tWAITING")
	for _, encoded := range all.Waiters {
		var w client.Waiter
		if err := decode(encoded, &w); err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", client.Printable(w.Key), w.Position, w.Awaited(),
			client.Printable(w.Pod), orNone(w.Session), orNone(w.Owner), client.Human(w.WaitingMS))
	}
	return table.Flush()
}
