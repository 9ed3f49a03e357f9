package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// statLines is the default number of types and pods. maxStatLines is the API's maximum.
	statLines    = 20
	maxStatLines = 1000
)

// The scopes of counts.
const (
	scopeNamespace = "namespace"
	scopeDatabase  = "database"
)

func (a *app) statsCommand() *cobra.Command {
	var scope string
	var limit int
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the held locks and the waiting calls, by type and by pod",
		Long: `Count the locks of all pods of the namespace, or with --scope database those of all namespaces,
by type (the part of the key before the first colon) and by pod, those with the most locks
first. Each holder of a shared lock counts as one.

HELD counts locks that are held now, and SHARED those of them that are shared. EXPIRED counts
locks whose holder has not renewed its lease in time, because its sidecar has ended or cannot
reach the database; the next call for such a lock gets it. WAITING counts calls in queues.
AVERAGE and LONGEST are the times for which the held ones have been held. The count reads
every lock of the database. To watch the numbers, scrape /metrics, where one sidecar counts
for all.`,
		Example: `  locksidecar stats
  locksidecar stats --scope database --limit 5
  locksidecar stats -o json | jq '.types[] | select(.waiting > 0)'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > maxStatLines {
				return usagef("--limit is %d; allowed: 1 to %d", limit, maxStatLines)
			}
			if scope != scopeNamespace && scope != scopeDatabase {
				return usagef("--scope is %q; allowed: namespace, database", scope)
			}
			query := url.Values{"scope": {scope}, "limit": {strconv.Itoa(limit)}}
			var answer json.RawMessage
			if err := a.newClient().Call(http.MethodGet, "/v1/stats?"+query.Encode(), nil, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, writeStats)
		},
	}
	addJSON(cmd)
	cmd.Flags().StringVar(&scope, "scope", scopeNamespace, "namespace: that of this sidecar; database: all namespaces")
	cmd.Flags().IntVar(&limit, "limit", statLines, "show at most so many types, and pods")
	return cmd
}

// writeStats writes a table of the types, one of the pods, and a line with the sum.
func writeStats(v *client.Stats, w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(v.Types) > 0 {
		fmt.Fprintln(table, "NAMESPACE\tTYPE\tHELD\tSHARED\tEXPIRED\tWAITING\tAVERAGE\tLONGEST")
	}
	var ofTypes, ofPods int64
	for _, t := range v.Types {
		ofTypes += t.Held
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n",
			orDash(t.Namespace), typeName(t.Type), t.Held, t.Shared, t.Expired, t.Waiting, client.Human(t.AverageHeld), client.Human(t.LongestHeld))
	}
	writeRest(table, "types", v.Held-ofTypes)
	if len(v.Pods) > 0 {
		fmt.Fprintln(table, "\nNAMESPACE\tPOD\tHELD\tSHARED\tEXPIRED\tAVERAGE\tLONGEST")
	}
	for _, p := range v.Pods {
		ofPods += p.Held
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n",
			orDash(p.Namespace), orDash(p.Pod), p.Held, p.Shared, p.Expired, client.Human(p.AverageHeld), client.Human(p.LongestHeld))
	}
	writeRest(table, "pods", v.Held-ofPods)
	if len(v.Types)+len(v.Pods) > 0 {
		fmt.Fprintln(table)
	}
	fmt.Fprintf(table, "%d held (%d shared), %d expired, %d waiting", v.Held, v.Shared, v.Expired, v.Waiting)
	if v.Held > 0 {
		fmt.Fprintf(table, "; held for %s on average, %s at the longest", client.Human(v.AverageHeld), client.Human(v.LongestHeld))
	}
	fmt.Fprintln(table)
	return table.Flush()
}

func writeRest(w io.Writer, what string, held int64) {
	if held > 0 {
		fmt.Fprintf(w, "(and %d held in %s that are not shown, see --limit)\n", held, what)
	}
}

func typeName(name string) string {
	if name == "" {
		return "(none)"
	}
	return client.Printable(name)
}

// orDash is a foreign text for people, or a sign that it is empty.
func orDash(name string) string {
	if name == "" {
		return client.None
	}
	return client.Printable(name)
}
