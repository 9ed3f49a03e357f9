package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
)

// pageSize is the most locks that one call of the API returns.
const pageSize = 1000

type listFlags struct {
	scope, prefix string
	limit         int
}

func (a *app) lsCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List held locks, ordered by key",
		Example: `  locksidecar ls                              # granted by this sidecar
  locksidecar ls --scope all --prefix backup: # of the whole namespace`,
		Args: exactly(0),
	}
	format := addOutput(cmd)
	cmd.Flags().StringVar(&flags.scope, "scope", "pod", "pod (granted by this sidecar) or all")
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().IntVar(&flags.limit, "limit", 0, "list at most so many; 0: all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.limit < 0 {
			return usagef("--limit is %d; allowed: 0 or more", flags.limit)
		}
		locks, err := listLocks(a.newClient(), flags)
		if err != nil {
			return err
		}
		if *format == outputJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"locks": locks})
		}
		return writeTable(cmd.OutOrStdout(), locks)
	}
	return cmd
}

// listLocks reads page after page.
func listLocks(c *client, flags listFlags) ([]json.RawMessage, error) {
	locks := []json.RawMessage{}
	query := url.Values{"scope": {flags.scope}}
	if flags.prefix != "" {
		query.Set("prefix", flags.prefix)
	}
	for {
		size := pageSize
		if flags.limit > 0 {
			size = min(size, flags.limit-len(locks))
		}
		query.Set("limit", strconv.Itoa(size))
		var page struct {
			Locks      []json.RawMessage `json:"locks"`
			NextCursor string            `json:"next_cursor"`
		}
		if err := c.call(fasthttp.MethodGet, "/v1/locks?"+encodeQuery(query), nil, &page, 0); err != nil {
			return nil, err
		}
		locks = append(locks, page.Locks...)
		if page.NextCursor == "" || (flags.limit > 0 && len(locks) >= flags.limit) {
			return locks, nil
		}
		query.Set("cursor", page.NextCursor)
	}
}

// encodeQuery writes a space as %20: a plus means a space in forms only.
func encodeQuery(query url.Values) string {
	return strings.ReplaceAll(query.Encode(), "+", "%20")
}

func writeTable(w io.Writer, locks []json.RawMessage) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tPOD\tSESSION\tHELD\tEXPIRES IN\tWAITING")
	for _, encoded := range locks {
		var lock lockView
		if err := json.Unmarshal(encoded, &lock); err != nil {
			return fmt.Errorf("the answer cannot be read: %w", err)
		}
		h := lock.Holder
		if h == nil {
			continue
		}
		session := "-"
		if h.Session != nil {
			session = *h.Session
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\n",
			lock.Key, h.Pod, session, human(h.HeldMS), human(h.ExpiresInMS), lock.QueueLength)
	}
	return table.Flush()
}
