package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/store"
)

// Apps choose the types of keys, so their number and length are limited: the first maxTypes have series
// of their own, the others share them. Other labels' values are in the code, so only a mistake reaches
// maxNames.
const (
	maxTypes     = 50
	maxTypeBytes = 64
	maxNames     = 100
)

// none is the label of what has no name, such as keys without a type.
const none = "_none"

// table has what belongs to each value of a label. Reads take no lock: adding a value replaces the map.
// After limit values, all new ones share that of [store.Others].
type table[V any] struct {
	limit  int
	create func(name string) V

	byName atomic.Pointer[map[string]V]
	full   atomic.Bool
	mu     sync.Mutex // guards the replacing, and own
	own    int        // names that are not reserved
}

func newTable[V any](limit int, create func(name string) V) *table[V] {
	t := &table[V]{limit: limit, create: create}
	t.byName.Store(&map[string]V{})
	return t
}

// newCounters makes a table, with these values at zero: a rate needs a counter from before it grew.
func newCounters(of *prometheus.CounterVec, values ...string) *table[prometheus.Counter] {
	t := newTable(maxNames, func(value string) prometheus.Counter { return of.WithLabelValues(value) })
	for _, value := range values {
		t.of(value)
	}
	return t
}

func (t *table[V]) of(name string) V {
	all := *t.byName.Load()
	v, ok := all[name]
	if !ok && name != none && t.full.Load() {
		v, ok = all[store.Others]
	}
	if !ok {
		v = t.add(name)
	}
	return v
}

func (t *table[V]) add(name string) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := *t.byName.Load()
	if v, ok := all[name]; ok { // another call was faster
		return v
	}
	own := name != none && name != store.Others && utf8.ValidString(name)
	full := own && t.own >= t.limit
	if own && !full {
		t.own++
	} else if name != none {
		name = store.Others
	}
	v, ok := all[name]
	if !ok {
		name = strings.Clone(name) // it may be a part of a key, which is gone when its call is
		v = t.create(name)
		all = maps.Clone(all)
		all[name] = v
		t.byName.Store(&all)
	}
	if full { // now there are others
		t.full.Store(true)
	}
	return v
}

// all is what the table has now, to be read only.
func (t *table[V]) all() map[string]V { return *t.byName.Load() }

func label(name string) string {
	switch {
	case name == "":
		return none
	case len(name) > maxTypeBytes:
		return store.Others
	default:
		return name
	}
}
