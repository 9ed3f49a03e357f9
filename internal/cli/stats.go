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
)

const (
	// statLines is the default number of types and pods, maxStatLines the most that the API returns.
	statLines    = 20
	maxStatLines = 1000
)

func (a *app) statsCommand() *cobra.Command {
	var ownNamespace bool
	var limit int
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the locks of the whole database, by type and by pod",
		Long: `Count the locks of the whole database, of all namespaces and pods, by type (the
part of the key before the first colon) and by pod, those with the most locks first.
Each holder of a shared lock counts as one.

Held are held now. Expired are those whose holder has not renewed its lease in time:
its sidecar is gone, or cannot reach the database, and whoever wants the lock next
gets it. Waiting stand in line. The counting reads every lock that there is: to
watch it, scrape /metrics, where one sidecar counts for all.`,
		Example: `  locksidecar stats
  locksidecar stats --namespace-only --limit 5
  locksidecar stats --json | jq '.types[] | select(.waiting > 0)'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > maxStatLines {
				return usagef("--limit is %d; allowed: 1 to %d", limit, maxStatLines)
			}
			query := url.Values{"scope": {"database"}, "limit": {strconv.Itoa(limit)}}
			if ownNamespace {
				query.Set("scope", "namespace")
			}
			var answer json.RawMessage
			if err := a.newClient().call(http.MethodGet, "/v1/stats?"+query.Encode(), nil, &answer, 0); err != nil {
				return err
			}
			return show(cmd, answer, (*statsView).write)
		},
	}
	addJSON(cmd)
	cmd.Flags().BoolVar(&ownNamespace, "namespace-only", false, "only the namespace of this sidecar")
	cmd.Flags().IntVar(&limit, "limit", statLines, "show at most so many types, and pods")
	return cmd
}

type counts struct {
	Held        int64 `json:"held"`
	Expired     int64 `json:"expired"`
	Waiting     int64 `json:"waiting"`
	AverageHeld int64 `json:"average_held_ms"`
	LongestHeld int64 `json:"longest_held_ms"`
}

type statsView struct {
	counts
	Types []struct {
		counts
		Namespace string `json:"namespace"`
		Type      string `json:"type"`
	} `json:"types"`
	Pods []struct {
		counts
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
	} `json:"pods"`
}

// write writes a table of the types, one of the pods, and a line of all.
func (v *statsView) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(v.Types) > 0 {
		fmt.Fprintln(table, "NAMESPACE\tTYPE\tHELD\tEXPIRED\tWAITING\tAVERAGE\tLONGEST")
	}
	var ofTypes, ofPods int64
	for _, t := range v.Types {
		ofTypes += t.Held
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n",
			orDash(t.Namespace), typeName(t.Type), t.Held, t.Expired, t.Waiting, human(t.AverageHeld), human(t.LongestHeld))
	}
	writeRest(table, "types", v.Held-ofTypes)
	if len(v.Pods) > 0 {
		fmt.Fprintln(table, "\nNAMESPACE\tPOD\tHELD\tEXPIRED\tAVERAGE\tLONGEST")
	}
	for _, p := range v.Pods {
		ofPods += p.Held
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\n",
			orDash(p.Namespace), orDash(p.Pod), p.Held, p.Expired, human(p.AverageHeld), human(p.LongestHeld))
	}
	writeRest(table, "pods", v.Held-ofPods)
	if len(v.Types)+len(v.Pods) > 0 {
		fmt.Fprintln(table)
	}
	fmt.Fprintf(table, "%d held, %d expired, %d waiting", v.Held, v.Expired, v.Waiting)
	if v.Held > 0 {
		fmt.Fprintf(table, "; held for %s on average, %s at the longest", human(v.AverageHeld), human(v.LongestHeld))
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
	return printable(name)
}

// orDash is a name for people. A sum has no namespace.
func orDash(name string) string {
	if name == "" {
		return none
	}
	return printable(name)
}
