// Package signal sends holders requests to stop or to give a lock up, and receives such signals.
package signal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Config is the configuration of a Signals.
type Config struct {
	types.Config
	Store      store.Signaler
	Lanes      *lanes.Set
	HeldCache  *heldcache.Cache
	Background *background.Runner

	Leases  Leases
	Holders Holders
	// Waiting is the number of calls that wait for a key here.
	Waiting func(key string) int
}

// Leases are those of the sidecar: heartbeat.Leases.
type Leases interface {
	// InUse are those under which the store may have locks.
	InUse() []store.LeaseID
	// LostEarly reports whether the store may have locks that no session has.
	LostEarly() bool
}

// Holders are the sessions of the sidecar: holdings.Set.
type Holders interface {
	// Signal applies a signal to a holder. It returns false if the grant is not known here.
	Signal(sig store.Signal) (known bool)
	// Empty reports whether no session holds a lock.
	Empty() bool
	// Came receives after a new lock, while it is awaited.
	Came() <-chan struct{}
	Await(so bool)
}

// Signals receives requests to the sessions of this sidecar. After news, or a renewal that reports signals,
// it reads them from the store, applies and acknowledges them. There is one poll at a time, with a pause
// after it. Requests for a poll in the meantime cause one more.
type Signals struct {
	cfg Config
	ctx context.Context // ends with the sidecar

	mu        sync.Mutex
	polling   bool
	pollAgain bool

	// unmatched are signals for grants unknown here, with the time when they were first seen, because the
	// grant may be in flight. Only the running poll uses them. While there are any, each new lock causes a poll.
	unmatched map[store.SignalID]time.Time
}

// New makes the signals of a sidecar, which are read until ctx ends.
func New(ctx context.Context, c Config) *Signals {
	return &Signals{cfg: c, ctx: ctx, unmatched: make(map[store.SignalID]time.Time)}
}

// Run polls after each new lock of a session while there are unmatched signals, until the sidecar stops.
func (sg *Signals) Run(ctx context.Context) {
	for {
		select {
		case <-sg.cfg.Holders.Came():
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
		sg.polling = sg.cfg.Background.Spawn(func() { sg.run(sg.ctx) })
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
	if sg.polling && sg.cfg.Holders.Empty() && !sg.cfg.Leases.LostEarly() {
		sg.cfg.Holders.Await(true) // a lock may be in flight
		sg.polling = !sg.cfg.Holders.Empty()
	}
	sg.pollAgain = false
	return sg.polling
}

// round reads the signals, applies them, and acknowledges those that are finished.
func (sg *Signals) round(ctx context.Context) error {
	leases := sg.cfg.Leases.InUse()
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sg.cfg.StoreTimeout)
	defer cancel()
	found, err := sg.cfg.Store.Signals(ctx, leases)
	if err != nil {
		return err
	}
	sg.cfg.Holders.Await(true) // a grant that arrives during this round may be one that was not found
	var acknowledged []store.SignalID
	unmatched := make(map[store.SignalID]time.Time)
	for _, sig := range found {
		if sg.cfg.Holders.Signal(sig) || sg.stale(sig, unmatched) {
			acknowledged = append(acknowledged, sig.ID)
		}
	}
	sg.unmatched = unmatched
	if len(unmatched) == 0 {
		sg.cfg.Holders.Await(false)
	}
	if len(acknowledged) == 0 {
		return nil
	}
	return sg.cfg.Store.Acknowledge(ctx, acknowledged)
}

// stale reports whether a signal's grant can no longer arrive. Otherwise it remembers the signal, which
// renewals report again.
func (sg *Signals) stale(sig store.Signal, unmatched map[store.SignalID]time.Time) bool {
	now := sg.cfg.Clock.Now()
	since, seen := sg.unmatched[sig.ID]
	if !seen {
		since = now
	}
	if now.Sub(since) > 2*sg.cfg.StoreTimeout && sg.cfg.Waiting(sig.Key) == 0 {
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
	status, err := lanes.Submit(ctx, sg.cfg.Lanes.Signals, sig)
	if err == nil && status == store.ClaimRowLocked {
		err = types.RowLocked("signal")
	}
	if err != nil {
		return false, err
	}
	sg.cfg.HeldCache.Drop(sig.Key)
	return status == store.Holds, nil
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
			sg.cfg.HeldCache.Drop(was.Key)
			return nil
		}
	}
}

func (sg *Signals) isOver(ctx context.Context, was store.Lock, token int64) (bool, error) {
	ctx, cancel := types.Within(ctx, "get", sg.cfg.StoreTimeout)
	defer cancel()
	if was.Shared && token != 0 { // a read may not show this share
		v, err := lanes.Submit(ctx, sg.cfg.Lanes.Amends, lanes.Amend(store.Change{Key: was.Key, Token: token}))
		return v.Status != store.Holds && v.Status != store.OtherSession, types.ClaimError("amend", v.Status, err)
	}
	lock, err := lanes.Submit(ctx, sg.cfg.Lanes.Reads, was.Key)
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
