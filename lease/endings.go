package lease

import (
	"maps"
	"slices"
	"sync"
)

// rememberedGrants is how many ended grants of this sidecar are remembered at least; at
// most it is half as many more. So a late claim hears what became of the lock.
const rememberedGrants = 10_000

// endings remembers what became of the grants that ended last, whatever was asked for
// meanwhile: those of late first, then twice as many that ended before them.
type endings struct {
	mu   sync.Mutex
	ages [3]map[grantRef]ending
}

func newEndings() *endings {
	e := &endings{}
	for i := range e.ages {
		e.ages[i] = make(map[grantRef]ending)
	}
	return e
}

func (e *endings) add(ref grantRef, end ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ages[0]) >= rememberedGrants/2 {
		oldest := e.ages[2]
		clear(oldest)
		e.ages = [3]map[grantRef]ending{oldest, e.ages[0], e.ages[1]}
	}
	e.ages[0][ref] = end
}

// settled forgets how a grant was released: that is done. Else what it needed would stay in
// memory for as long as the grant is remembered.
func (e *endings) settled(ref grantRef) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			end.release = nil
			known[ref] = end
			return
		}
	}
}

// keys are those of the grants.
func (e *endings) keys() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	keys := make(map[string]struct{})
	for _, known := range e.ages {
		for ref := range known {
			keys[ref.key] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(keys))
}

func (e *endings) get(ref grantRef) (ending, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			return end, true
		}
	}
	return ending{}, false
}
