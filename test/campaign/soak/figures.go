package soak

import "slices"

// The figures.
const (
	memory, descriptors, goroutines = "sidecars' memory", "sidecars' descriptors", "sidecars' goroutines"
	heap                            = "sidecars' heap"
	tableBytes, indexBytes          = "tables", "indexes"
	liveRows, deadRows              = "rows", "dead rows"
	updated, hotUpdated             = "updates", "HOT updates"
	waitersStood                    = "waiters so far"
	backendCount, backendBytes      = "backends", "memory of a backend"
	granted, pair                   = "grants", "a pair"
)

var processes = []rule{
	{figure: memory, unit: "MiB", per: 1 << 20, slack: 6},
	{figure: descriptors, slack: 6},
	{figure: goroutines, slack: 10},
	{figure: backendCount, slack: 2},
	{figure: backendBytes, unit: "MiB", per: 1 << 20, slack: 1},
}

// rulesOf are those of a database; while a transaction stays open, the last ones are only shown.
func rulesOf(open bool) []rule {
	of := []rule{
		{figure: tableBytes, unit: "KiB", per: 1 << 10, slack: 512},
		{figure: indexBytes, unit: "KiB", per: 1 << 10, slack: 256},
		{figure: deadRows, slack: 1000},
		{figure: pair, unit: "ms", per: 1e6, slack: 2},
	}
	if open {
		for i := range of {
			of[i].slack = shown
		}
	}
	of = append(of, rule{figure: liveRows, slack: 20}, rule{figure: heap, unit: "MiB", per: 1 << 20, slack: shown})
	for _, figure := range []string{updated, hotUpdated, waitersStood, granted} {
		of = append(of, rule{figure: figure, slack: shown})
	}
	return slices.Concat(processes, of)
}
