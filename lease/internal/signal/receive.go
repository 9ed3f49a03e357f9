// Package signal asks holders to stop or to give a lock up, and receives such signals.
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

// Signals receives what others ask the sessions here to do. News and renewals say that there is something;
// then the store is read, and what was read is acknowledged. One poll is under way at a time, with a pause
// between two; requests meanwhile make one more follow.
type Signals struct {
	ctx   context.Context // ends with the sidecar
	cfg   types.Config
	store store.Signaler // nil: nobody can be asked
	lanes *lanes.Set
	cache *heldcache.Cache
	locks Locks
	spawn func(func()) bool

	mu        sync.Mutex
	polling   bool
	pollAgain bool

	// unmatched are signals for grants unknown here, by when they were first seen: the grant may be on its
	// way. Only the poll under way uses them. hasUnmatched: a new lock makes another poll follow.
	unmatched    map[store.SignalID]time.Time
	hasUnmatched atomic.Bool
}

// Locks are the leases and locks of this sidecar.
type Locks interface {
	// LeasesInUse are the open leases under which there may be locks.
	LeasesInUse() []store.LeaseID
	// HoldsAny reports whether a session holds a lock.
	HoldsAny() bool
	// MayGet reports whether a call waits for the key.
	MayGet(key string) bool
	// Apply does what a signal asks. It reports false if the signal's grant is not known.
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

// Poll makes the store be read soon. It does not block.
func (sg *Signals) Poll() {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.pollAgain = true
	if !sg.polling {
		sg.polling = sg.spawn(func() { sg.run(sg.ctx) })
	}
}

// Granted notes that a session has got a lock, which may have a signal.
func (sg *Signals) Granted() {
	if sg.hasUnmatched.Load() {
		sg.Poll()
	}
}

// The first pause between polls is short for a single signal. Later ones are longer for a storm of news.
const (
	pollPauseMin = 2 * time.Millisecond
	pollPauseMax = 50 * time.Millisecond
)

// run polls until no other poll is asked for.
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

// next reports whether to poll once more. Without locks nobody is asked for anything.
func (sg *Signals) next() bool {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.polling = sg.pollAgain && sg.ctx.Err() == nil
	if sg.polling && !sg.locks.HoldsAny() {
		sg.hasUnmatched.Store(true) // a lock may be on its way
		sg.polling = sg.locks.HoldsAny()
	}
	sg.pollAgain = false
	return sg.polling
}

// round reads the signals, applies them, and acknowledges those that are done with.
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
	sg.hasUnmatched.Store(true) // a grant that arrives during this round may be one that was not found
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

// stale reports whether a signal's grant cannot come any more. If not, it notes the signal, which renewals
// repeat.
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
