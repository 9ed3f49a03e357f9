package main

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
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
		Example: `  locksidecar ls                              # granted by this sidecar
  locksidecar ls --scope all --type backup    # of the whole namespace: backup:…
  locksidecar ls --scope all --prefix backup:db-
  locksidecar ls --scope all --json | jq -r '.locks[] | select(.stopping) | .key'`,
		Args: exactly(0),
	}
	asJSON := addJSON(cmd)
	cmd.Flags().StringVar(&flags.scope, "scope", "pod", "pod (granted by this sidecar) or all")
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().StringVar(&flags.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().IntVar(&flags.limit, "limit", 0, "list at most so many; 0: all")
	must(cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions(
		[]cobra.Completion{"pod", "all"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.limit < 0 {
			return usagef("--limit is %d; allowed: 0 or more", flags.limit)
		}
		locks, err := listLocks(a.newClient(), flags)
		if err != nil {
			return err
		}
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"locks": locks})
		}
		return writeTable(cmd.OutOrStdout(), locks)
	}
	return cmd
}

// listLocks reads page after page. The locks are kept as they came: they may have
// more members than this version knows.
func listLocks(c *client, flags listFlags) ([]json.RawMessage, error) {
	locks := []json.RawMessage{}
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
			size = min(size, flags.limit-len(locks))
		}
		query.Set("limit", strconv.Itoa(size))
		page, err := c.listPage(query)
		if err != nil {
			return nil, err
		}
		locks = append(locks, page.Locks...)
		if page.NextCursor == "" || (flags.limit > 0 && len(locks) >= flags.limit) {
			return locks, nil
		}
		query.Set("cursor", page.NextCursor)
	}
}

type lockPage struct {
	Locks      []json.RawMessage `json:"locks"`
	NextCursor string            `json:"next_cursor"`
}

func (c *client) listPage(query url.Values) (page lockPage, err error) {
	// A plus means a space in forms only.
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	err = c.call(fasthttp.MethodGet, "/v1/locks?"+encoded, nil, &page, 0)
	return page, err
}
