package wire

import (
	"cmp"
	"strconv"

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
	types, pods := newStatsList(counted.Types, r, namespace), newStatsList(counted.Pods, r, namespace)
	b = append(b, '{')
	b = appendSums(b, &types.total, true)
	b = append(b, `,"types":`...)
	b = types.append(b, `,"type":`, true)
	b = append(b, `,"pods":`...)
	b = pods.append(b, `,"pod":`, false)
	return append(b, '}')
}

// statsList is a list of stats, cut to its limit. Others is the sum of the rest.
type statsList struct {
	lines         []store.Stat
	more          bool // there are others
	total, others store.Stat
}

// newStatsList counts. The store's sum (see [store.Stats]) stands last, and has no namespace.
func newStatsList(all []store.Stat, r StatsRequest, namespace string) statsList {
	t := statsList{others: store.Stat{Name: store.Others}}
	for i := range all {
		line := &all[i]
		if r.own && line.Namespace != namespace {
			continue
		}
		t.total = t.total.Plus(*line)
		if len(t.lines) == r.limit {
			t.others = t.others.Plus(*line)
			t.more = true
			continue
		}
		t.lines = append(t.lines, *line)
	}
	return t
}

// append appends the list. name is the member that says what each line is about.
func (t *statsList) append(b []byte, name string, waiting bool) []byte {
	b = append(b, '[')
	for i := range t.lines {
		b = appendLine(b, &t.lines[i], name, waiting)
		b = append(b, ',')
	}
	if t.more {
		b = appendLine(b, &t.others, name, waiting)
		return append(b, ']')
	}
	if len(t.lines) > 0 {
		b = b[:len(b)-1] // the last comma
	}
	return append(b, ']')
}

func appendLine(b []byte, line *store.Stat, name string, waiting bool) []byte {
	b = append(b, `{"namespace":`...)
	b = appendStringOrNull(b, line.Namespace)
	b = append(b, name...)
	b = AppendString(b, line.Name)
	b = append(b, ',')
	return append(appendSums(b, line, waiting), '}')
}

// appendSums appends the members. A pod has no waiters of which the store knows.
func appendSums(b []byte, line *store.Stat, waiting bool) []byte {
	b = append(b, `"held":`...)
	b = strconv.AppendInt(b, line.Held, 10)
	b = append(b, `,"expired":`...)
	b = strconv.AppendInt(b, line.Expired, 10)
	if waiting {
		b = append(b, `,"waiting":`...)
		b = strconv.AppendInt(b, line.Waiting, 10)
	}
	b = append(b, `,"average_held_ms":`...)
	b = appendMillis(b, line.Average)
	b = append(b, `,"longest_held_ms":`...)
	return appendMillis(b, line.Longest)
}
