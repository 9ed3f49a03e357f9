package lease

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/fleet"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/multi"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/reconcile"
	"github.com/locksidecar/locksidecar/lease/internal/signal"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/lease/internal/watch"
	"github.com/locksidecar/locksidecar/store"
)

// Manager contains the sessions, leases and locks of this sidecar, and calls the store's operations in the
// right order.
type Manager struct {
	cfg types.Config
	st  store.Store
	obs *observe.Observer

	judge      *readiness.Judge
	lanes      *lanes.Set
	needs      *hearing.Needs
	heldCache  *heldcache.Cache
	leases     *heartbeat.Leases
	holdings   *holdings.Set
	acquirer   *attempt.Acquirer
	groups     *multi.Groups
	signals    *signal.Signals
	watches    *watch.Watches
	reconciler *reconcile.Reconciler
	fleet      *fleet.Counter
	// holders asks once for several calls who holds a key: see nameHolder.
	holders singleflight.Group

	lifecycle
}

// holders are the sessions of the sidecar, and the keys that it keeps, as signals see them.
type holders struct {
	*holdings.Set
	acquirer *attempt.Acquirer
}

// Signal applies a signal. If the key is kept, nobody is to be told: the key is given up. If a session took it from what was kept, the signal may be for an
// earlier one, so the store is told who has the key now.
func (h holders) Signal(sig store.Signal) (known bool) {
	known = h.Set.Signal(sig)
	kept := h.acquirer.IsKept(sig.Key)
	h.acquirer.Expose(sig.Key)
	return known || kept
}

// Empty reports whether no signal can be for this sidecar.
func (h holders) Empty() bool { return h.Set.Empty() && h.acquirer.KeptKeys() == 0 }

// lifecycle is the progress of a manager from New to Stop.
type lifecycle struct {
	draining  chan struct{} // closed by Drain
	drainOnce sync.Once
	ctx       context.Context // of the background work, until Stop
	cancel    context.CancelFunc
	start     sync.Once
	stop      sync.Once

	background *background.Runner
}

// New makes a manager on a store. Start begins to use the store.
func New(cfg types.Config, st store.Store) (*Manager, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.System{}
	}
	inline := st.Traits().Inline
	m := &Manager{cfg: cfg, st: st, obs: observe.New(cfg.Logger, cfg.Metrics, cfg.Tracer, inline)}
	m.draining = make(chan struct{})
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.background = background.New(m.ctx, m.cfg.Clock)
	var err error
	if m.heldCache, err = heldcache.New(cfg.CacheSize, cfg.CacheTTL, m.cfg.Clock); err != nil {
		return nil, err
	}
	m.judge = readiness.New(cfg, st)
	m.lanes = lanes.New(cfg, st, m.obs, m.judge, m.draining)
	m.needs = hearing.New(st)
	m.leases = heartbeat.New(m.ctx, heartbeat.Config{
		TTL: cfg.TTL, RenewInterval: cfg.RenewInterval, StoreTimeout: cfg.StoreTimeout,
		Store: st, Lanes: m.lanes, Clock: cfg.Clock, Log: cfg.Logger, Observer: m.obs, Background: m.background,
		Beat: cfg.Beat, Users: leaseUsers{m},
	})
	m.acquirer, err = attempt.New(m.ctx, attempt.Config{
		Config: cfg, Observer: m.obs, Store: st, Lanes: m.lanes, HeldCache: m.heldCache, Leases: m.leases,
		Needs: m.needs, Background: m.background, Draining: m.draining,
	})
	if err != nil {
		return nil, err
	}
	m.holdings = m.acquirer.Holdings()
	m.signals = signal.New(m.ctx, signal.Config{
		Config: cfg, Store: st, Lanes: m.lanes, HeldCache: m.heldCache, Background: m.background,
		Leases: m.leases, Holders: holders{m.holdings, m.acquirer}, Waiting: m.acquirer.Queue.Length,
	})
	m.groups = multi.New(m.ctx, multi.Config{
		Config: cfg, Acquirer: m.acquirer, Amends: m.lanes.Amends, Inline: inline, Background: m.background,
	})
	m.watches = m.newWatches()
	m.fleet = fleet.New(m.ctx, cfg, st, m.background.Spawn)
	m.reconciler = reconcile.New(m.ctx, reconcile.Config{Config: cfg, Store: st, Leases: m.leases, Holdings: m.holdings, Attempts: m.acquirer})
	m.obs.Observe(m.state)
	return m, nil
}

// OpenSession opens a session. Errors: [LimitError], and [ErrDraining] while the sidecar shuts down.
func (m *Manager) OpenSession(o types.SessionOptions) (*holdings.Session, error) {
	return m.holdings.Open(o)
}

// Session finds a session that other connections may join, by its id. Error: [ErrSessionEnded].
func (m *Manager) Session(id string) (*holdings.Session, error) { return m.holdings.Session(id) }

func (m *Manager) state() observe.State {
	st := observe.State{Ready: m.Ready() == nil, Draining: m.isDraining()}
	st.Leases, st.LeaseExpiry, st.LeaseLeft = m.leases.Left(clock.Read(m.cfg.Clock))
	m.holdings.Observe(&st)
	st.Kept = m.acquirer.KeptKeys()
	return st
}

// Start begins to renew leases and to check waits. It does this once. After Stop it has no effect.
func (m *Manager) Start(context.Context) error {
	m.start.Do(func() {
		m.obs.ObserveFleet(m.Fleet)
		if m.acquirer.Keeps() {
			m.background.Spawn(func() { m.acquirer.RunKeeps(m.ctx) })
		}
		for _, run := range []func(context.Context){
			m.sweep, m.leases.Run, m.needs.Run, m.acquirer.Run, m.signals.Run, m.judge.Run, m.watches.Run,
		} {
			m.background.Spawn(func() { run(m.ctx) })
		}
	})
	return nil
}

// Ready is nil if locks can be acquired. Otherwise it returns [ErrDraining] during shutdown, or the reason:
// the store cannot serve, or grants no locks, or the leases of predecessors are not revoked yet.
func (m *Manager) Ready() error {
	if m.isDraining() {
		return types.ErrDraining
	}
	if err := m.st.Ready(); err != nil {
		return err
	}
	if err := m.leases.Ready(); err != nil {
		return err
	}
	return m.judge.Ready()
}

// Drain refuses new acquires and ends waiting ones, and gives up the keys that are kept. Releases still work.
func (m *Manager) Drain() {
	m.drainOnce.Do(func() {
		close(m.draining) // from now on, no key is kept
		m.acquirer.GiveUpAll(nil)
	})
}

func (m *Manager) isDraining() bool { return types.Closed(m.draining) }

// Idle returns a channel that is closed once no session holds a lock, at the latest by Stop. It must be
// called after Drain, because before that a lock may be granted at any time.
func (m *Manager) Idle() <-chan struct{} {
	const pause = 20 * time.Millisecond
	idle := make(chan struct{})
	running := m.background.Spawn(func() {
		defer close(idle)
		for !m.holdings.Empty() {
			if clock.Rest(m.ctx, pause) != nil {
				return
			}
		}
	})
	if !running {
		close(idle)
	}
	return idle
}

// Held is the number of locks that sessions hold, with the bytes of their keys and data, and of keys that are kept.
func (m *Manager) Held() (locks int, bytes int64) {
	locks, bytes = m.holdings.Held()
	return locks + m.acquirer.KeptKeys(), bytes
}

// Unused reports whether no session holds a lock, and no call waits for one. Both may change at once, unless Drain was called.
func (m *Manager) Unused() bool { return m.holdings.Empty() && m.acquirer.Queue.Empty() }

// Stop ends all sessions, releases their locks, and revokes the leases. It takes at most a few times the
// store's timeout. The store must be stopped after it.
func (m *Manager) Stop() {
	m.Drain()
	m.stop.Do(func() {
		// Locks are released first, because their leases still live: another sidecar gets them at once.
		m.endSessions()
		// What runs by itself ends before the revocation, so that leases are no longer renewed or opened.
		m.cancel()
		m.background.Join()
		m.limited(func(ctx context.Context) {
			// These two only make and end leases one by one. RevokeAll ends all, without a lane.
			m.lanes.Openings.Stop(ctx)
			m.lanes.Revocations.Stop(ctx)
			// Nothing more is granted or queued. What was asked before has its answer now.
			m.lanes.Acquires.Stop(ctx)
			m.lanes.Enqueues.Stop(ctx)
			// So all that is queued can be cancelled: calls may not have noticed the drain yet.
			m.acquirer.Queue.CancelAll()
			m.lanes.Cancels.Stop(ctx)
		})
		// This frees what is left under the leases, also if the releases and cancels had no answer.
		m.limited(m.leases.RevokeAll)
		// What outlives the leases (bind:ttl, MinHold) gets a last try, in lanes that stop after it.
		m.background.Hurry()
		m.limited(func(ctx context.Context) {
			m.lanes.Withdrawals.Stop(ctx)
			m.lanes.Amends.Stop(ctx)
			m.lanes.Reads.Stop(ctx)
			m.lanes.Signals.Stop(ctx)
			m.lanes.Releases.Stop(ctx)
		})
	})
}

// LeftNothing reports, after Stop, whether the store has confirmed the revocation of all leases of this
// sidecar and of its predecessors.
func (m *Manager) LeftNothing() bool { return m.leases.LeftNothing() }

// ReapPredecessors revokes the leases of earlier instances at this socket, given in the order in which they
// ran. Until the store confirms that, or a few tries have failed, the manager is not ready. Locks can be
// requested meanwhile. done is called when the store has confirmed it for all.
func (m *Manager) ReapPredecessors(instances []string, done func()) { m.leases.Reap(instances, done) }

func (m *Manager) limited(part func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.StoreTimeout)
	defer cancel()
	part(ctx)
}

// endSessions ends all sessions and waits, at most one store timeout, until their locks are released.
func (m *Manager) endSessions() {
	released := m.acquirer.GivingUp()
	for _, s := range m.holdings.All() {
		released = append(released, s.End(types.EndShutdown))
	}
	timer := time.NewTimer(m.cfg.StoreTimeout)
	defer timer.Stop()
	for _, done := range released {
		select {
		case <-done:
		case <-timer.C:
			m.cfg.Logger.Warn("not all locks were released in time, so their leases are revoked now")
			return
		}
	}
}

// sweepInterval is the pause between two sweeps.
const sweepInterval = 10 * time.Minute

// sweep deletes bind:ttl locks that were not released, and rows of free keys, some time after their end. A sidecar whose
// grants have all ended stops sweeping, because an idle sidecar sends nothing. The store decides how much a sweep deletes, and how fast.
func (m *Manager) sweep(ctx context.Context) {
	for clock.Rest(ctx, clock.Jittered(sweepInterval)) == nil {
		if m.cfg.Clock.Now().After(m.acquirer.LastEnd().Add(2 * sweepInterval)) {
			continue
		}
		if err := m.st.Sweep(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("the store was not swept, trying again later", "error", err)
		}
	}
}
