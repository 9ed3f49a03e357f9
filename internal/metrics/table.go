package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/store"
)

// none is the label of what has no name, such as keys without a type.
const none = "_none"

// maxNames is how many values a label may have that is no type: those of the code are
// fewer, so this is only reached by a mistake.
const maxNames = 100

// table finds what belongs to the value of a label. It grows by few entries and is read
// without a lock: adding one replaces the whole map. Once it is full, all that is new
// shares one entry, named [store.Others].
type table[V any] struct {
	entries atomic.Pointer[entries[V]]
	mu      sync.Mutex // guards the replacing
}

type entries[V any] struct {
	byName map[string]*V
	// others is nil until the table is full.
	others *V
}

// get is nil where add is needed.
func (t *table[V]) get(name string) *V {
	e := t.entries.Load()
	if e == nil {
		return nil
	}
	if v, ok := e.byName[name]; ok {
		return v
	}
	if name == none { // it has a place of its own, whenever it comes
		return nil
	}
	return e.others
}

// add returns the entry of a name, which it makes unless there are as many as may be.
func (t *table[V]) add(name string, limit int, create func(name string) *V) *V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.get(name); v != nil {
		return v
	}
	next := entries[V]{byName: map[string]*V{}}
	if e := t.entries.Load(); e != nil {
		maps.Copy(next.byName, e.byName)
	}
	full := name != none && name != store.Others && next.own() >= limit
	if full {
		name = store.Others
	}
	v := next.byName[name]
	if v == nil {
		name = strings.Clone(name) // it may be part of a key, which is gone when its call is
		v = create(name)
		next.byName[name] = v
	}
	if full {
		next.others = v
	}
	t.entries.Store(&next)
	return v
}

// own counts the names that are none of this package's.
func (e *entries[V]) own() int {
	n := len(e.byName)
	for _, reserved := range []string{none, store.Others} {
		if _, ok := e.byName[reserved]; ok {
			n--
		}
	}
	return n
}

// all is what the table has now, to be read only.
func (t *table[V]) all() map[string]*V {
	if e := t.entries.Load(); e != nil {
		return e.byName
	}
	return nil
}
