package lease

import "sync"

// rememberedGrants is how many ended grants of this sidecar are remembered at least; at
// most it is twice as many. So a late claim hears what became of the lock.
const rememberedGrants = 5_000

// endings remembers what became of the grants that ended last, whatever was asked for
// meanwhile: recent has those of late, before as many that ended before them.
type endings struct {
	mu             sync.Mutex
	recent, before map[grantRef]ending
}

func newEndings() *endings {
	return &endings{recent: make(map[grantRef]ending), before: make(map[grantRef]ending)}
}

func (e *endings) add(ref grantRef, end ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.recent) >= rememberedGrants {
		e.recent, e.before = e.before, e.recent
		clear(e.recent)
	}
	e.recent[ref] = end
}

// settled forgets how a grant was released: that is done. Else what it needed would stay in
// memory for as long as the grant is remembered.
func (e *endings) settled(ref grantRef) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range []map[grantRef]ending{e.recent, e.before} {
		if end, ok := known[ref]; ok {
			end.release = nil
			known[ref] = end
			return
		}
	}
}

func (e *endings) get(ref grantRef) (ending, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end, ok := e.recent[ref]
	if !ok {
		end, ok = e.before[ref]
	}
	return end, ok
}
