package attempt

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// hearPeriod is for how long the store hears recalls before it is judged whether that has paid. LeastUses is how often kept keys must be taken
	// meanwhile, and how often sessions here must have wanted a key again before, within as long.
	hearPeriod = 10 * time.Second
	LeastUses  = 10
	// mostUses limits how often they must have wanted one after periods that did not pay.
	mostUses = 64 * LeastUses
)

// keeper decides while a store that hears recalls only for those who keep keys must do so: see [store.Keeper]. Hearing costs the server something, whoever
// keeps keys: [store.Listener] says what. So it must pay, too. If the sidecar hears anyway, because a call waits, keys are kept without this.
type keeper struct {
	st    store.Keeper // nil: the store hears all the time
	needs *hearing.Needs
	wake  chan struct{}
	// takes is how often a kept key was taken in this period.
	takes atomic.Int64

	mu     sync.Mutex
	hears  bool      // the store was told that keys are kept
	began  time.Time // this period
	wanted int       // asks of this period that wanted to keep their keys, while the store does not hear
	needed int       // how many of them make it hear
}

// wants records that an ask wants to keep its key.
func (k *keeper) wants(now time.Time) {
	if k.st == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hears {
		return
	}
	if now.Sub(k.began) >= hearPeriod {
		k.began, k.wanted = now, 0
	}
	if k.wanted++; k.wanted < max(k.needed, LeastUses) {
		return
	}
	k.hears, k.began = true, now
	k.takes.Store(0)
	k.needs.Begin(hearing.News)
	k.st.Keeping(true)
	clock.Wake(k.wake) // RunKeeps ends that
}

// rest tells the store when hearing has not paid, unless keys are kept now. It returns when to look again.
func (k *keeper) rest(now time.Time, kept int) time.Duration {
	if k.st == nil {
		return time.Hour
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !k.hears:
		return time.Hour
	case kept > 0 || now.Sub(k.began) < hearPeriod:
		return time.Second
	}
	k.began = now
	if k.takes.Swap(0) >= LeastUses {
		k.needed = LeastUses
		return time.Second
	}
	k.hears, k.wanted, k.needed = false, 0, min(2*max(k.needed, LeastUses), mostUses)
	k.st.Keeping(false)
	k.needs.End(hearing.News)
	return time.Hour
}
