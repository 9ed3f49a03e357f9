package redis

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/store/cas"
)

// merge returns the first records of pages, each of which is in order.
func merge(pages [][]cas.Record, limit int) []cas.Record {
	all := slices.Concat(pages...)
	if len(pages) > 1 {
		slices.SortFunc(all, func(a, b cas.Record) int { return cmp.Compare(a.Key, b.Key) })
	}
	return all[:min(len(all), limit)]
}
