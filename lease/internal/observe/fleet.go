package observe

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// fleetLines is how many types, and pods, have metrics of their own.
	fleetLines = 20
	// fleetType is the longest name of a type, in bytes, that does.
	fleetType = 64
	// fleetNone names the type of the keys that have none.
	fleetNone = "_none"
)

// Fleet is what the whole database holds, few enough lines for labels.
type Fleet = metrics.Fleet

// FleetOf makes metrics of what a store has counted.
func FleetOf(stats store.Stats) Fleet {
	types := make([]store.Stat, len(stats.Types))
	for i, s := range stats.Types {
		switch {
		case s.Name == "":
			s.Name = fleetNone
		case len(s.Name) > fleetType:
			s.Namespace, s.Name = "", store.Others
		}
		types[i] = s
	}
	return Fleet{Types: topLines(types), Pods: topLines(stats.Pods)}
}

// topLines returns the lines with the most locks, and one with the sum of the others. No two have
// the same names: that would report one metric twice.
func topLines(stats []store.Stat) []metrics.FleetLine {
	type names struct{ namespace, name string }
	sums := make(map[names]store.Stat, len(stats))
	for _, s := range stats {
		n := names{s.Namespace, s.Name}
		sums[n] = sums[n].Plus(s)
	}
	rest := names{"", store.Others}
	others, some := sums[rest]
	delete(sums, rest)

	lines := make([]store.Stat, 0, len(sums))
	for n, s := range sums {
		s.Namespace, s.Name = n.namespace, n.name
		lines = append(lines, s)
	}
	slices.SortFunc(lines, func(a, b store.Stat) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range lines[min(fleetLines, len(lines)):] {
		others, some = others.Plus(s), true
	}
	lines = lines[:min(fleetLines, len(lines))]
	if some {
		others.Namespace, others.Name = rest.namespace, rest.name
		lines = append(lines, others)
	}
	out := make([]metrics.FleetLine, len(lines))
	for i, s := range lines {
		out[i] = fleetLine(s)
	}
	return out
}

func fleetLine(s store.Stat) metrics.FleetLine {
	return metrics.FleetLine{
		Namespace: s.Namespace, Name: s.Name,
		Held: s.Held, Expired: s.Expired, Waiting: s.Waiting, AverageHold: s.Average, LongestHold: s.Longest,
	}
}
