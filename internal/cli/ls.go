package cli

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// pageSize is the most locks that one call of the API returns.
const pageSize = 1000

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

BIND is "session" for a lock that its session holds until it is released or the session
ends: the holder's sidecar renews it. It is "ttl" for one that ends after its time.`,
		Example: `  locksidecar ls --type backup    # backup:…
  locksidecar ls --prefix backup:db-
  locksidecar ls --scope pod      # granted by this sidecar
  locksidecar ls --json | jq -r '.locks[] | select(.stopping) | .key'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.limit < 0 {
				return usagef("--limit is %d; allowed: 0 or more", flags.limit)
			}
			list, err := listLocks(a.newClient(), flags)
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				out := json.NewEncoder(cmd.OutOrStdout())
				out.SetEscapeHTML(false) // as the API does not
				return out.Encode(list)
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

// listLocks reads all pages into one. The locks stay as they came: some members may be unknown here.
func listLocks(c *client, flags listFlags) (lockPage, error) {
	list := lockPage{Locks: []json.RawMessage{}}
	query := url.Values{"scope": {flags.scope}}
	if flags.prefix != "" {
		query.Set("prefix", flags.prefix)
	}
	if flags.kind != "" {
		query.Set("type", flags.kind)
	}
	for {
		size := pageSize
		if flags.limit > 0 {
			size = min(size, flags.limit-len(list.Locks))
		}
		query.Set("limit", strconv.Itoa(size))
		page, err := c.listPage(query)
		if err != nil {
			return lockPage{}, err
		}
		list.Locks, list.NextCursor = append(list.Locks, page.Locks...), page.NextCursor
		if page.NextCursor == nil || (flags.limit > 0 && len(list.Locks) >= flags.limit) {
			return list, nil
		}
		query.Set("cursor", *page.NextCursor)
	}
}

type lockPage struct {
	Locks      []json.RawMessage `json:"locks"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

func (c *client) listPage(query url.Values) (page lockPage, err error) {
	// A plus means a space in forms only.
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	err = c.call(http.MethodGet, "/v1/locks?"+encoded, nil, &page, 0)
	return page, err
}
