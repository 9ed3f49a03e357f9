package lease

import "sync"

// rememberedGrants is how many ended grants of this sidecar are remembered, so
// that a late claim hears what became of the lock.
const rememberedGrants = 10_000

// endings remembers what became of the grants that ended last: of so many, whatever was
// asked for meanwhile.
type endings struct {
	mu    sync.Mutex
	known map[grantRef]ending
	// order has them by their age, the oldest at next once there are as many as may be.
	order []grantRef
	next  int
}

func newEndings() *endings { return &endings{known: make(map[grantRef]ending)} }

func (e *endings) add(ref grantRef, end ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, again := e.known[ref]; again {
		e.known[ref] = end
		return
	}
	if len(e.order) < rememberedGrants {
		e.order = append(e.order, ref)
	} else {
		delete(e.known, e.order[e.next])
		e.order[e.next] = ref
		e.next = (e.next + 1) % rememberedGrants
	}
	e.known[ref] = end
}

func (e *endings) get(ref grantRef) (ending, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end, ok := e.known[ref]
	return end, ok
}
