package attempt

import (
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
		aq.keeps = keep.New(c.Keep, CohortTime, c.Lanes.Together, c.Clock)
		aq.keeper.st, _ = c.Store.(store.Keeper)
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
