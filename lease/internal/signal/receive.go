// Package signal asks holders to stop or to give a lock up, and hears what others ask the holders
// here for.
package signal

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Signals hears what others ask the sessions here for: to stop what they do under
// a lock, or to give it up. News and the renewals say that there is something; then
// the store is asked, and told what was heard. One look is under way at a time, with
// a pause between them; what comes meanwhile makes one more follow.
type Signals struct {
	ctx   context.Context // ends with the sidecar
	cfg   types.Config
	store store.Signaler // nil: nobody can be asked for anything
	lanes *lanes.Set
	cache *heldcache.Cache
	locks Locks
	spawn func(func()) bool

	mu        sync.Mutex
	polling   bool
	pollAgain bool

	// unmatched are signals for grants that are not known here, by when they were first
	// seen: a grant may still be on its way to here. Only the look under way uses them;
	// hasUnmatched: a session that gets a lock makes another poll follow.
	unmatched    map[store.SignalID]time.Time
	hasUnmatched atomic.Bool
}

// Locks is what signals are about: the leases and locks of this sidecar.
type Locks interface {
	// LeasesInUse are the open leases under which there may be locks.
	LeasesInUse() []store.LeaseID
	// HoldsAny reports whether a session holds a lock.
	HoldsAny() bool
	// MayGet reports whether a call waits for the key.
	MayGet(key string) bool
	// Apply does what a signal asks for. It reports false if the grant that is meant is not known.
	Apply(sig store.Signal) bool
}

// New makes the signals of a sidecar, which are read until ctx ends. spawn runs that.
func New(
	ctx context.Context, cfg types.Config, st store.Store, ls *lanes.Set, cache *heldcache.Cache, locks Locks, spawn func(func()) bool,
) *Signals {
	sg := &Signals{
		ctx: ctx, cfg: cfg, lanes: ls, cache: cache, locks: locks, spawn: spawn, unmatched: make(map[store.SignalID]time.Time),
	}
	sg.store, _ = st.(store.Signaler)
	return sg
}

// Poll makes the store be asked for signals soon. It does not block.
func (sg *Signals) Poll() {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.pollAgain = true
	if !sg.polling {
		sg.polling = sg.spawn(func() { sg.run(sg.ctx) })
	}
}

// Granted hears that a session has got a lock, for which there may be a signal.
func (sg *Signals) Granted() {
	if sg.hasUnmatched.Load() {
		sg.Poll()
	}
}

// The first pause between two polls that follow each other is short, so that a single one
// hardly waits. Later pauses are longer, so that a storm of news costs little.
const (
	pollPauseMin = 2 * time.Millisecond
	pollPauseMax = 50 * time.Millisecond
)

// run polls until nobody has asked for another poll.
func (sg *Signals) run(ctx context.Context) {
	usual := pollPauseMin
	for sg.next() {
		pause := usual
		usual = min(2*usual, pollPauseMax)
		if err := sg.round(ctx); err != nil {
			sg.cfg.Logger.Debug("signals not read, trying again", "error", err)
			pause = clock.Jittered(clock.RetryPause)
			sg.mu.Lock()
			sg.pollAgain = true
			sg.mu.Unlock()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// next reports whether to look once more. Nobody is asked for anything who holds
// nothing.
func (sg *Signals) next() bool {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.polling = sg.pollAgain && sg.ctx.Err() == nil
	if sg.polling && !sg.locks.HoldsAny() {
		sg.hasUnmatched.Store(true) // in case that one is on its way
		sg.polling = sg.locks.HoldsAny()
	}
	sg.pollAgain = false
	return sg.polling
}

// round asks for the signals, does what they say, and tells the store which are
// done with.
func (sg *Signals) round(ctx context.Context) error {
	leases := sg.locks.LeasesInUse()
	if len(leases) == 0 || sg.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sg.cfg.StoreTimeout)
	defer cancel()
	found, err := sg.store.Signals(ctx, leases)
	if err != nil {
		return err
	}
	sg.hasUnmatched.Store(true) // what arrives while this goes on may be what was just not found
	var acknowledged []store.SignalID
	unmatched := make(map[store.SignalID]time.Time)
	for _, sig := range found {
		if sg.locks.Apply(sig) || sg.stale(sig, unmatched) {
			acknowledged = append(acknowledged, sig.ID)
		}
	}
	sg.unmatched = unmatched
	if len(unmatched) == 0 {
		sg.hasUnmatched.Store(false)
	}
	if len(acknowledged) == 0 {
		return nil
	}
	return sg.store.Acknowledge(ctx, acknowledged)
}

// stale reports whether the grant that a signal means can not be on its way to here
// any more; else it notes since when the signal is known. Renewals bring it again.
func (sg *Signals) stale(sig store.Signal, unmatched map[store.SignalID]time.Time) bool {
	now := sg.cfg.Clock.Now()
	since, seen := sg.unmatched[sig.ID]
	if !seen {
		since = now
	}
	if now.Sub(since) > 2*sg.cfg.StoreTimeout && !sg.locks.MayGet(sig.Key) {
		return true
	}
	unmatched[sig.ID] = since
	return false
}
