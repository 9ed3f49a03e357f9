package cli

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// waiting is a call that waits.
type waiting struct {
	Key       string  `json:"key"`
	Position  int     `json:"position"`
	Pod       string  `json:"pod"`
	Session   *string `json:"session"`
	Owner     *string `json:"owner"`
	Mode      string  `json:"mode"`
	Limit     *int    `json:"limit"` // null: none
	WaitingMS int64   `json:"waiting_ms"`
}

func (a *app) waitersCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "waiters [KEY]",
		Short: "List the calls that wait, ordered by key and by their place in the queue",
		Long: `List the calls of all pods that wait for a key, or without KEY those of the whole
namespace, ordered by key and by their place in the queue.

MODE is what they wait for: "exclusive", "shared", or "shared of 5" with a limit of five.`,
		Example: `  locksidecar waiters backup:nightly
  locksidecar waiters --prefix backup: --limit 20
  locksidecar waiters --json | jq -r '.waiters[] | select(.waiting_ms > 60000) | .pod'`,
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
				path = lockPath(args[0]) + "/waiters"
			}
			return listWaiters(cmd, a.newClient(), path, flags)
		},
	}
	addJSON(cmd)
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().IntVar(&flags.limit, "limit", 0, "list at most so many; 0: all")
	return cmd
}

func listWaiters(cmd *cobra.Command, c *client, path string, flags listFlags) error {
	all := page{Waiters: []json.RawMessage{}}
	next, err := c.pages(path, flags.query(), flags.limit, func(p *page) error {
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
		var w waiting
		if err := decode(encoded, &w); err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", printable(w.Key), w.Position, w.mode(),
			printable(w.Pod), orNone(w.Session), orNone(w.Owner), human(w.WaitingMS))
	}
	return table.Flush()
}

func (w *waiting) mode() string {
	if w.Limit != nil {
		return fmt.Sprintf("%s of %d", printable(w.Mode), *w.Limit)
	}
	return printable(w.Mode)
}
