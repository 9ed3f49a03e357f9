package wire

import (
	"cmp"

	"github.com/locksidecar/locksidecar/store"
)

// defaultStatLines is how many lines each list of GET /v1/stats has, without the one for the others.
const defaultStatLines = 20

// StatsRequest is what GET /v1/stats asks for.
type StatsRequest struct {
	own   bool // only the sidecar's namespace
	limit int
}

// ParseStats reads a GET /v1/stats. It fails with the Problem to answer.
func ParseStats(query, body []byte) (StatsRequest, *Problem) {
	in := readInput(query, []string{"scope", "limit"}, body, nil)
	r := StatsRequest{
		own:   in.word("scope", "database", "namespace") == 2,
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

// cut leaves out what is not asked for. Beyond the limit one line is the sum of the others. The store's own
// such line (see [store.Stats]) stands last, and has no namespace.
func cut(all []store.Stat, r StatsRequest, namespace string) (lines []store.Stat, total store.Stat) {
	for _, line := range all {
		if r.own && line.Namespace != namespace {
			continue
		}
		total = total.Plus(line)
		switch len(lines) {
		case r.limit:
			others := store.Stat{Name: store.Others}
			lines = append(lines, others.Plus(line))
		case r.limit + 1:
			lines[r.limit] = lines[r.limit].Plus(line)
		default:
			lines = append(lines, line)
		}
	}
	return lines, total
}

// stats is a member with a list. what is the member that says what each line is about.
func (o object) stats(name, what string, lines []store.Stat, waiting bool) object {
	o = append(o.name(name), '[')
	for i := range lines {
		line := &lines[i]
		o = open(comma(o)).textIf("namespace", line.Namespace).text(what, line.Name).stat(line, waiting).end()
	}
	return append(o, ']')
}

// stat appends the members of a line. A pod has no waiters of which the store knows.
func (o object) stat(line *store.Stat, waiting bool) object {
	o = o.number("held", line.Held).number("expired", line.Expired)
	if waiting {
		o = o.number("waiting", line.Waiting)
	}
	return o.millis("average_held_ms", line.Average).millis("longest_held_ms", line.Longest)
}
