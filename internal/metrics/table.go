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

// Apps choose the types of keys, so their number and length are limited: the first maxTypes have their own series,
// and the others share one. The values of other labels are in the code, so only a mistake could reach maxNames.
const (
	maxTypes     = 50
	maxTypeBytes = 64
	maxNames     = 100
)

// none is the label for a missing name, such as the type of keys without one.
const none = "_none"

// table maps each value of a label to its metrics. Reads take no mutex, because adding a value replaces the
// map. After limit values, all new ones share that of [store.Others].
type table[V any] struct {
	limit  int
	create func(name string) V

	byName atomic.Pointer[map[string]V]
	full   atomic.Bool
	mu     sync.Mutex // guards the replacing, and own
	own    int        // number of names that are not reserved
}

func newTable[V any](limit int, create func(name string) V) *table[V] {
	t := &table[V]{limit: limit, create: create}
	t.byName.Store(&map[string]V{})
	return t
}

// newCounters makes a table, with these values at zero, because a rate needs a counter from before its growth.
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
	if v, ok := all[name]; ok { // another call added it
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
		name = strings.Clone(name) // it may be part of a key, whose memory is reused
		v = t.create(name)
		all = maps.Clone(all)
		all[name] = v
		t.byName.Store(&all)
	}
	if full { // from now on, new names are among the others
		t.full.Store(true)
	}
	return v
}

// all is the present map, which must not be changed.
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
