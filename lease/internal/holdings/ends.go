package holdings

import (
	"cmp"
	"sync"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

type grantRef struct {
	key   string
	token int64
}

// End says how a grant ended.
type End struct {
	// Lost is the reason of a loss, empty if the lock was released.
	Lost types.LostReason
	// Release is the release, under way or done, if the lock was released.
	Release *Release
}

// RepeatWaits reports whether a repeated release waits for the one that is under way.
func (e End) RepeatWaits() bool {
	switch {
	case e.Release == nil: // it is done, or there was none
		return false
	case e.Lost == "": // the app released the lock
		return true
	default:
		// The lock was released because its connection closed, or the sidecar stops. The repeat is answered with that loss at once, but if a
		// try has failed, it waits.
		return e.Release.lastTryFailed()
	}
}

// Remembered is the minimum number of remembered ended grants of this sidecar. The maximum is one and a
// half times as many.
const Remembered = 10_000

// recentEnds remembers how the last grants ended, in three maps, the latest first. When the first is full,
// the oldest is emptied.
type recentEnds struct {
	mu   sync.Mutex
	ages [3]map[grantRef]End
}

func newRecentEnds() *recentEnds {
	e := &recentEnds{}
	for i := range e.ages {
		e.ages[i] = make(map[grantRef]End)
	}
	return e
}

func (e *recentEnds) add(ref grantRef, end End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ages[0]) >= Remembered/2 {
		oldest := e.ages[2]
		clear(oldest)
		e.ages = [3]map[grantRef]End{oldest, e.ages[0], e.ages[1]}
	}
	e.ages[0][ref] = end
}

// releaseSettled forgets a Release that is done. Otherwise its lock would stay in memory as long as the end is remembered. lost is
// why the lock ended if the store did not confirm the release.
func (e *recentEnds) releaseSettled(ref grantRef, lost types.LostReason) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			end.Release, end.Lost = nil, cmp.Or(end.Lost, lost)
			known[ref] = end
			return
		}
	}
}

func (e *recentEnds) get(ref grantRef) (End, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			return end, true
		}
	}
	return End{}, false
}
