package wire

import (
	"cmp"

	"github.com/locksidecar/locksidecar/store"
)

// defaultStatLines is the default length of each list of GET /v1/stats, without the line for the rest.
const defaultStatLines = 20

// StatsRequest contains the parameters of GET /v1/stats.
type StatsRequest struct {
	all   bool // namespaces, not only the sidecar's
	limit int
}

// ParseStats reads a GET /v1/stats. It fails with the Problem to answer.
func ParseStats(query, body []byte) (StatsRequest, *Problem) {
	in := readInput(query, []string{"scope", "limit"}, body, nil)
	r := StatsRequest{
		all:   in.word("scope", "namespace", "database") == 2,
		limit: int(cmp.Or(in.integer("limit", 1, maxLimit), defaultStatLines)),
	}
	return r, in.problem
}

// AppendStats appends the answer of GET /v1/stats for a sidecar of the given namespace.
func AppendStats(b []byte, counted store.Stats, r StatsRequest, namespace string) []byte {
	types, total := cut(counted.Types, r, namespace)
	pods, _ := cut(counted.Pods, r, namespace)
	return open(b).stat(&total, true).stats("types", "type", types, true).stats("pods", "pod", pods, false).end()
}

// cut selects the requested lines. Beyond the limit, one line is the sum of the rest. It has no namespace.
func cut(all []store.Stat, r StatsRequest, namespace string) (lines []store.Stat, total store.Stat) {
	for _, line := range all {
		if r.all || line.Namespace == namespace {
			lines = append(lines, line)
			total = total.Plus(line)
		}
	}
	return store.Top(lines, r.limit), total
}

// stats appends a list. what names the member that identifies each line.
func (o object) stats(name, what string, lines []store.Stat, waiting bool) object {
	o = append(o.name(name), '[')
	for i := range lines {
		line := &lines[i]
		o = open(comma(o)).textIf("namespace", line.Namespace).text(what, line.Name).stat(line, waiting).end()
	}
	return append(o, ']')
}

// stat appends the members of a line. The store does not count waiters by pod.
func (o object) stat(line *store.Stat, waiting bool) object {
	o = o.number("held", line.Held).number("shared", line.Shared).number("expired", line.Expired)
	if waiting {
		o = o.number("waiting", line.Waiting)
	}
	return o.millis("average_held_ms", line.Average).millis("longest_held_ms", line.Longest)
}
