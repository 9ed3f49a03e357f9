package cli

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

type listFlags struct {
	scope, prefix, kind string
	limit               int
}

func (a *app) lsCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List held locks, ordered by key",
		Long: `List held locks of the whole namespace, ordered by key; with --scope pod only those
that this sidecar has granted.

BIND is "session" for a lock that ends with a release or with its session; the holder's
sidecar renews it. BIND is "ttl" for a lock that ends after its time.

MODE is "exclusive", or "shared" with the number of holders, and with a limit "shared 3/5";
the other columns show the holder with the oldest grant ("get" shows all holders).`,
		Example: `  locksidecar ls --type backup    # backup:…
  locksidecar ls --prefix backup:db-
  locksidecar ls --scope pod      # granted by this sidecar
  locksidecar ls --json | jq -r '.locks[] | select(.stopping) | .key'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.limit < 0 {
				return badLimit(flags.limit)
			}
			list, err := listLocks(a.newClient(), flags)
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return writeJSON(cmd.OutOrStdout(), list)
			}
			return writeTable(cmd.OutOrStdout(), list.Locks)
		},
	}
	addJSON(cmd)
	cmd.Flags().StringVar(&flags.scope, "scope", "all", "all (of the namespace) or pod (granted by this sidecar)")
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().StringVar(&flags.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().IntVar(&flags.limit, "limit", 0, "list at most so many; 0: all")
	return cmd
}

// listLocks reads all pages into one. It keeps the locks as received, because newer members may be unknown here.
func listLocks(c *client.Client, flags listFlags) (list lockPage, err error) {
	list.Locks = []json.RawMessage{}
	list.NextCursor, err = c.Pages("/v1/locks", flags.query(), flags.limit, func(p *client.Page) error {
		list.Locks = append(list.Locks, p.Locks...)
		return nil
	})
	return list, err
}

func (f *listFlags) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"scope": f.scope, "prefix": f.prefix, "type": f.kind} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

type lockPage struct {
	Locks      []json.RawMessage `json:"locks"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

func badLimit(limit int) error { return usagef("--limit is %d; allowed: 0 or more", limit) }
