package attempt

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Config is the configuration of an Acquirer.
type Config struct {
	types.Config
	Observer   *observe.Observer
	Store      waitStore
	Lanes      *lanes.Set
	HeldCache  *heldcache.Cache
	Leases     *heartbeat.Leases
	Needs      *hearing.Needs
	Background *background.Runner
	// Draining is closed when waiting calls must end.
	Draining <-chan struct{}
}

// Acquirer gets locks for sessions, and bind:ttl locks.
type Acquirer struct {
	// Queue has the attempts that wait in the store's queues. It gets the store's news of them.
	Queue *Queue

	cfg   types.Config
	clk   clock.Clock
	obs   *observe.Observer
	store waitStore

	lanes     *lanes.Set
	heldCache *heldcache.Cache
	leases    *heartbeat.Leases
	holdings  *holdings.Set
	later     *background.Runner
	arrivals  *arrivals
	keeps     *keep.Table         // nil: the sidecar keeps no keys
	requests  repeat.Requests     // requests with BindTTL
	waiters   atomic.Int64        // calls that wait
	patience  types.PatienceTimer // of calls that do not wait, and of releases
	began     time.Time
	// lastEnd is when the store keeps no grant any more, in nanoseconds after began; 0: nothing was granted.
	lastEnd atomic.Int64

	keeper keeper

	// longestQueue is the store's limit; zero means none.
	longestQueue int
	// inline: the store answers at once, in the caller's goroutine (see its traits).
	inline   bool
	draining <-chan struct{}
	ctx      context.Context // ends with the sidecar
}

// New makes an acquirer, which works until ctx ends.
func New(ctx context.Context, c Config) (*Acquirer, error) {
	traits := c.Store.Traits()
	aq := &Acquirer{
		cfg: c.Config, clk: c.Clock, obs: c.Observer, store: c.Store,
		Queue: newQueue(c.Config, c.Observer, c.Store, c.Needs, c.Background.Spawn),
		lanes: c.Lanes, heldCache: c.HeldCache, leases: c.Leases, later: c.Background,
		longestQueue: traits.LongestQueue, inline: traits.Inline,
		draining: c.Draining, ctx: ctx, began: c.Clock.Now(), patience: types.PatienceTimer{Timeout: c.StoreTimeout},
	}
	aq.holdings = holdings.New(holdings.Config{
		Instance: c.Instance, Pod: c.Pod, TTL: c.TTL, MaxSessions: c.MaxSessions, MaxLocksPerSession: c.MaxLocksPerSession,
		Clock: c.Clock, Observer: c.Observer, Draining: c.Draining, Leases: c.Leases, Needs: c.Needs,
		RenewInterval: c.RenewInterval,
	}, aq)
	aq.arrivals = newArrivals(aq.enqueueAll, aq.gathers)
	if c.Keep > 0 && !traits.Inline { // an inline store answers as fast as the table
		aq.keeps = keep.New(c.Keep, cmp.Or(c.MaxKept, keep.MaxEntries), CohortTime, c.Lanes.Together, c.Clock)
		if !traits.HearsAlways {
			aq.keeper.st, _ = c.Store.(store.Keeper)
		}
		aq.keeper.needs, aq.keeper.wake = c.Needs, aq.keeps.Wake
	}
	return aq, aq.requests.Remember(holdings.Remembered)
}

// Holdings are the sessions of the sidecar. The acquirer makes them, because it releases their locks.
func (aq *Acquirer) Holdings() *holdings.Set { return aq.holdings }

// Run checks waiting attempts when they are due, until ctx ends.
func (aq *Acquirer) Run(ctx context.Context) { aq.Queue.checkWhenDue(ctx) }

// Remembered counts what is remembered of calls, for tests. Without calls, all counts are zero.
func (aq *Acquirer) Remembered() map[string]int {
	aq.arrivals.mu.Lock()
	defer aq.arrivals.mu.Unlock()
	return map[string]int{
		"kept keys": aq.KeptKeys(),
		"waiters":   int(aq.waiters.Load()), "keys with arrivals": len(aq.arrivals.keys), "attempts": int(aq.Queue.size.Load()),
		"keys with attempts": aq.Queue.keys(), "requests in use": aq.requests.Count(),
	}
}

// HeldInCache answers without the store that a key is held: by a session here, or by another holder a moment
// ago. If the request's owner has just got the lock and may enter it, the request is not denied. A share is
// denied only because of an exclusive holder.
func (aq *Acquirer) HeldInCache(s *holdings.Session, req *types.Request) (store.Lock, bool) {
	if req.Wait != 0 || req.NoCache {
		return store.Lock{}, false
	}
	if h := aq.holdings.Get(req.Key); h != nil && h.Valid(clock.Read(aq.clk)) {
		if h.Of(s) && h.Admits(req) || req.Shared && h.IsDowngraded() {
			return store.Lock{}, false
		}
		aq.obs.Cached(observe.CachedHeld)
		return aq.StateOf(h), true
	}
	if req.Shared {
		return store.Lock{}, false
	}
	lock, ok := aq.heldCache.Get(req.Key)
	if !ok || s.Expects(&lock, req) {
		return store.Lock{}, false
	}
	aq.obs.Cached(observe.CachedDenied)
	return lock, true
}

// StateOf is a lock of this sidecar as other callers see it, with the calls of this sidecar that wait for it.
func (aq *Acquirer) StateOf(h *holdings.Lock) store.Lock {
	lock := h.State()
	lock.QueueLength = aq.Queue.Length(h.Key)
	return lock
}

// ResultOf is the result of an acquire for metrics and spans.
func ResultOf(g *types.Grant, err error) string {
	switch {
	case err != nil:
		return types.CodeOf(err)
	case g.Reentry > 1:
		return observe.Reentered
	default:
		return observe.Granted
	}
}

// IsDraining reports whether acquires are refused.
func (aq *Acquirer) IsDraining() bool {
	select {
	case <-aq.draining:
		return true
	default:
		return false
	}
}

// TTLOf is the TTL that a request asks for, or the default.
func (aq *Acquirer) TTLOf(s *holdings.Session, req *types.Request) time.Duration {
	switch {
	case req.TTL != 0:
		return req.TTL
	case s != nil && req.Bind == types.BindSession:
		return s.TTL()
	default:
		return aq.cfg.TTL
	}
}

// AddWaiter counts a waiting call. It returns a [LimitError] if there are too many.
func (aq *Acquirer) AddWaiter() error {
	if n := aq.waiters.Add(1); n > int64(aq.cfg.MaxWaiters) {
		aq.waiters.Add(-1)
		return waiterLimit(aq.cfg.MaxWaiters)
	}
	return nil
}

// WaiterLeft ends the counting.
func (aq *Acquirer) WaiterLeft() { aq.waiters.Add(-1) }

func waiterLimit(limit int) error {
	return &types.LimitError{What: "waiting calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
}

// GrantLasts records for how long the store may keep a grant without a renewal.
func (aq *Acquirer) GrantLasts(now time.Time, lasts time.Duration) {
	end := int64(now.Add(lasts).Sub(aq.began))
	for noted := aq.lastEnd.Load(); noted == 0 || end-noted >= int64(time.Minute); noted = aq.lastEnd.Load() {
		// A precision of a minute suffices, so most grants need not write.
		if aq.lastEnd.CompareAndSwap(noted, end) {
			break
		}
	}
}

// LastEnd is when the store keeps none of the sidecar's grants any more, to a minute; zero: it has granted nothing.
func (aq *Acquirer) LastEnd() time.Time {
	if end := aq.lastEnd.Load(); end != 0 {
		return aq.began.Add(time.Duration(end))
	}
	return time.Time{}
}
