// Package signal sends holders requests to stop or to give a lock up, and receives such signals.
package signal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Signals receives requests to the sessions of this sidecar. After news, or a renewal that reports signals,
// it reads them from the store, applies and acknowledges them. There is one poll at a time, with a pause
// after it. Requests for a poll in the meantime cause one more.
type Signals struct {
	ctx   context.Context // ends with the sidecar
	cfg   types.Config
	store store.Signaler
	lanes *lanes.Set
	cache *heldcache.Cache
	later *background.Runner

	leases   *heartbeat.Leases
	holdings *holdings.Set
	acquirer *attempt.Acquirer

	mu        sync.Mutex
	polling   bool
	pollAgain bool

	// unmatched are signals for grants unknown here, with the time when they were first seen, because the
	// grant may be in flight. Only the running poll uses them. While there are any, each new lock causes a poll.
	unmatched map[store.SignalID]time.Time
}

// New makes the signals of a sidecar, which are read until ctx ends.
func New(
	ctx context.Context, cfg types.Config, st store.Store, ls *lanes.Set, cache *heldcache.Cache, later *background.Runner,
	leases *heartbeat.Leases, aq *attempt.Acquirer,
) *Signals {
	sg := &Signals{
		ctx: ctx, cfg: cfg, store: st, lanes: ls, cache: cache, later: later, leases: leases, holdings: aq.Holdings(), acquirer: aq,
		unmatched: make(map[store.SignalID]time.Time),
	}
	return sg
}

// Run polls after each new lock of a session while there are unmatched signals, until the sidecar stops.
func (sg *Signals) Run(ctx context.Context) {
	for {
		select {
		case <-sg.holdings.Came():
			sg.Poll()
		case <-ctx.Done():
			return
		}
	}
}

// Poll causes a read of the store soon. It does not block.
func (sg *Signals) Poll() {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.pollAgain = true
	if !sg.polling {
		sg.polling = sg.later.Spawn(func() { sg.run(sg.ctx) })
	}
}

// The pause after a first poll is short, for a single signal. Later ones are longer, for many news.
const (
	pollPauseMin = 2 * time.Millisecond
	pollPauseMax = 50 * time.Millisecond
)

// run polls until no further poll is requested.
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
		_ = clock.Rest(ctx, pause) // next sees that ctx has ended
	}
}

// next reports whether to poll once more. Without locks, and without leases that were lost early, there cannot be a signal to apply.
func (sg *Signals) next() bool {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.polling = sg.pollAgain && sg.ctx.Err() == nil
	if sg.polling && sg.holdings.Empty() && !sg.leases.LostEarly() {
		sg.holdings.Await(true) // a lock may be in flight
		sg.polling = !sg.holdings.Empty()
	}
	sg.pollAgain = false
	return sg.polling
}

// round reads the signals, applies them, and acknowledges those that are finished.
func (sg *Signals) round(ctx context.Context) error {
	leases := sg.leases.InUse()
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sg.cfg.StoreTimeout)
	defer cancel()
	found, err := sg.store.Signals(ctx, leases)
	if err != nil {
		return err
	}
	sg.holdings.Await(true) // a grant that arrives during this round may be one that was not found
	var acknowledged []store.SignalID
	unmatched := make(map[store.SignalID]time.Time)
	for _, sig := range found {
		if sg.holdings.Signal(sig) || sg.stale(sig, unmatched) {
			acknowledged = append(acknowledged, sig.ID)
		}
	}
	sg.unmatched = unmatched
	if len(unmatched) == 0 {
		sg.holdings.Await(false)
	}
	if len(acknowledged) == 0 {
		return nil
	}
	return sg.store.Acknowledge(ctx, acknowledged)
}

// stale reports whether a signal's grant can no longer arrive. Otherwise it remembers the signal, which
// renewals report again.
func (sg *Signals) stale(sig store.Signal, unmatched map[store.SignalID]time.Time) bool {
	now := sg.cfg.Clock.Now()
	since, seen := sg.unmatched[sig.ID]
	if !seen {
		since = now
	}
	if now.Sub(since) > 2*sg.cfg.StoreTimeout && sg.acquirer.Queue.Length(sig.Key) == 0 {
		return true
	}
	unmatched[sig.ID] = since
	return false
}

// The pauses between two reads of a key that is being broken grow.
const (
	breakPauseMin = 10 * time.Millisecond
	breakPauseMax = 250 * time.Millisecond
)

// Send sends a signal. It reports false if the key is not held, or not under the signal's token.
func (sg *Signals) Send(ctx context.Context, sig store.Signal) (held bool, err error) {
	standing, err := lanes.Submit(ctx, sg.lanes.Signals, sig)
	if err == nil && standing == store.ClaimRowLocked {
		err = types.RowLocked("signal")
	}
	if err != nil {
		return false, err
	}
	sg.cache.Drop(sig.Key)
	return standing == store.Holds, nil
}

// AwaitOver waits until the grant is over. For a shared lock this is the grant under the token, or with 0
// all grants in was. A lock without a session was already ended by the store. Otherwise the holder's
// sidecar is notified soon, or with its next renewal.
func (sg *Signals) AwaitOver(ctx context.Context, was store.Lock, token int64) error {
	asked := was.Shared || was.Holder.Renewed
	for pause := breakPauseMin; ; pause = min(2*pause, breakPauseMax) {
		if asked || pause > breakPauseMin {
			if err := clock.Rest(ctx, pause); err != nil {
				return errors.Join(types.ErrCallerLeft, err)
			}
		}
		over, err := sg.isOver(ctx, was, token)
		switch {
		case err != nil:
			return err
		case over:
			sg.cache.Drop(was.Key)
			return nil
		}
	}
}

func (sg *Signals) isOver(ctx context.Context, was store.Lock, token int64) (bool, error) {
	ctx, cancel := types.Within(ctx, "get", sg.cfg.StoreTimeout)
	defer cancel()
	if was.Shared && token != 0 { // a read may not show this share
		v, err := lanes.Submit(ctx, sg.lanes.Amends, lanes.Amend(store.Change{Key: was.Key, Token: token}))
		return v.Status != store.Holds && v.Status != store.OtherSession, types.Judged("amend", v.Status, err)
	}
	lock, err := lanes.Submit(ctx, sg.lanes.Reads, was.Key)
	if err != nil {
		return false, err
	}
	if !was.Shared {
		return !lock.Held || !store.OfGrant(lock.Token, was.Token), nil
	}
	newest := was.Token
	for _, share := range was.Holders {
		newest = max(newest, share.Token)
	}
	return !lock.Held || lock.Token > newest, nil
}
