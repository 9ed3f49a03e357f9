package attempt

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/store"
)

// LeastUses is how often kept keys must be taken within hearPeriod, so that to hear recalls has paid, and how often sessions here must have wanted a key again
// before, within as long.
const LeastUses = 10

const (
	// hearPeriod is for how long the store hears recalls before it is judged whether that has paid.
	hearPeriod = 10 * time.Second
	// mostUses limits how often they must have wanted one after periods that did not pay: twice as often after each.
	mostUses = 64 * LeastUses
	// hearPause is after what pause LeastUses suffice again. It doubles, too.
	hearPause = time.Minute
)

// keeper decides while a store that hears recalls only for those who keep keys must do so: see [store.Keeper]. Hearing costs the server something, whoever
// keeps keys: [store.Listener] says what. So it must pay, too. The store is told also if the sidecar hears anyway, because a call waits for instance: a
// connection that carries recalls is checked more often. As this costs less, it is tried at once.
//
// After a period that did not pay, more asks must want to keep their keys. A sidecar of few asks would never have so many, so after a pause it is tried as at
// first: perhaps recalls are heard now, or others do not want the keys any more, and nothing else would show it.
type keeper struct {
	st    store.Keeper // nil: the store hears all the time
	needs *hearing.Needs
	wake  chan struct{}
	// takes is how often a kept key was taken in this period.
	takes atomic.Int64

	mu sync.Mutex
	// told: the store knows that keys may be kept, since the last period began.
	told  bool
	began time.Time
	// hears: it must hear because of that.
	hears bool
	// wanted counts asks that wanted to keep their keys since counted, while the store need not hear. needed is how many of them make it hear during the
	// pause after the last period, which ended and did not pay; 0: it has paid, or there was none.
	wanted, needed int
	counted, ended time.Time
}

// wants records that an ask wants to keep its key. It reports whether the store knows that keys may be kept from now on; it need not hear yet. heard: it hears
// already.
func (k *keeper) wants(now time.Time, heard bool) (told bool) {
	if k.st == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hears {
		return true
	}
	if now.Sub(k.counted) >= hearPeriod {
		k.counted, k.wanted = now, 0
	}
	k.wanted++
	needed := k.needed
	if pause := hearPause * time.Duration(needed/(2*LeastUses)); now.Sub(k.ended) >= pause {
		needed = 0
	}
	switch {
	case k.wanted >= max(needed, LeastUses):
		k.hears = true
		k.needs.Begin(hearing.News)
		k.tellLocked(now)
	case heard && needed == 0 && !k.told:
		k.tellLocked(now)
	}
	return k.told
}

// tellLocked begins a period. The caller holds k.mu.
func (k *keeper) tellLocked(now time.Time) {
	k.told, k.began = true, now
	k.takes.Store(0)
	k.st.Keeping(true)
	clock.Wake(k.wake) // RunKeeps ends that
}

// rest judges a period that is over. If few kept keys were taken, the store is told that none is kept, and ends is true: the caller gives up all keys. next is
// when to look again.
func (k *keeper) rest(now time.Time) (next time.Duration, ends bool) {
	if k.st == nil {
		return time.Hour, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !k.told:
		return time.Hour, false
	case now.Sub(k.began) < hearPeriod:
		return time.Second, false
	}
	k.began = now
	if k.takes.Swap(0) >= LeastUses {
		k.needed = 0
		return time.Second, false
	}
	k.told = false
	k.st.Keeping(false)
	k.wanted, k.needed, k.ended = 0, min(2*max(k.needed, LeastUses), mostUses), now
	if k.hears {
		k.hears = false
		k.needs.End(hearing.News)
	}
	return time.Hour, true
}
