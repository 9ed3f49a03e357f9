package lease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/fleet"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/signal"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/lease/internal/watch"
	"github.com/locksidecar/locksidecar/store"
)

// Manager is the heart of a sidecar: it knows the sessions, the leases and the
// locks granted here, and puts the store's operations in order.
type Manager struct {
	cfg types.Config
	st  store.Store
	// mover is the same; nil if it never forgets anything.
	mover store.Mover
	clk   clock.Clock
	log   *slog.Logger
	obs   *observe.Observer

	lanes *lanes.Set

	leases    *leaseSet
	holdings  *holdings
	acquirer  *acquirer
	groups    *groups
	watches   *watch.Watches
	signals   *signal.Signals
	fleet     *fleet.Counter
	heldCache *heldcache.Cache

	reaping       atomic.Bool  // the leases of predecessors are not revoked yet
	leftUnrevoked atomic.Int64 // revocations that nobody tries any more, and of predecessors
	sweeping      *sweeping

	// inline: the store answers at once, in the caller's goroutine (see its traits).
	inline bool

	// draining is closed by Drain.
	draining  chan struct{}
	drainOnce sync.Once

	ctx    context.Context // of what runs in the background
	cancel context.CancelFunc
	stop   sync.Once
	background
	retries retries
}

// New makes a manager on a store, which it uses from Start on.
func New(cfg types.Config, st store.Store) (*Manager, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.System{}
	}
	m := &Manager{
		cfg: cfg, st: st, clk: cfg.Clock, log: cfg.Logger, inline: st.Traits().Inline,
		leases: newLeaseSet(cfg.TTL, listen(st)), draining: make(chan struct{}),
	}
	m.obs = observe.New(cfg.Logger, cfg.Metrics, cfg.Tracer, m.inline)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var err error
	if m.heldCache, err = heldcache.New(cfg.CacheSize, cfg.CacheTTL, m.clk); err != nil {
		return nil, err
	}
	m.lanes = lanes.New(cfg, st, m.obs, m.draining)
	if m.acquirer, err = m.newAcquirer(); err != nil {
		return nil, err
	}
	m.signals = signal.New(m.ctx, cfg, st, m.lanes, m.heldCache, signalLocks{m}, m.spawn)
	m.watches, m.groups = m.newWatches(), newGroups(m.ctx, m.acquirer, st, m.spawn)
	m.sweeping = newSweeping(st, m.clk, m.log)
	m.fleet = fleet.New(m.ctx, cfg, st, m.spawn)
	m.mover, _ = st.(store.Mover)
	m.obs.Observe(m.state)
	return m, nil
}

// newAcquirer makes the acquirer of a manager, and the holdings that it fills.
func (m *Manager) newAcquirer() (*acquirer, error) {
	aq := &acquirer{
		cfg: m.cfg, clk: m.clk, obs: m.obs, lanes: m.lanes, heldCache: m.heldCache, retries: &m.retries, inline: m.inline,
		releaser: &releaser{lane: m.lanes.Releases, retries: &m.retries, heldCache: m.heldCache, log: m.log},
		queue:    newQueue(m.cfg, m.obs, m.st, m.spawn), ready: m.st.Ready, granted: m.granted, pin: m.pin, lose: m.lose,
		draining: m.draining, ctx: m.ctx,
	}
	aq.arrivals = newArrivals(aq.enqueueAll)
	m.holdings = m.newHoldings(aq.releaser, aq.queue.length)
	aq.holdings = m.holdings
	return aq, aq.requests.Remember(rememberedGrants)
}

// granted hears of each grant: see [acquirer].
func (m *Manager) granted(now time.Time, lasts time.Duration, held bool) {
	m.sweeping.granted(now, lasts)
	if held {
		m.signals.Granted()
	}
}

// newHoldings makes those of a manager.
func (m *Manager) newHoldings(sender sender, queueLength func(key string) int) *holdings {
	return newHoldings(holdingsConfig{
		Instance: m.cfg.Instance, Pod: m.cfg.Pod, TTL: m.cfg.TTL,
		MaxSessions: m.cfg.MaxSessions, MaxLocksPerSession: m.cfg.MaxLocksPerSession,
		Clock: m.clk, Observer: m.obs, Draining: m.draining,
		Sender: sender, Lease: m.leases.get, QueueLength: queueLength,
	})
}

// OpenSession opens a session. It fails with [LimitError], and with [ErrDraining] while the
// sidecar shuts down.
func (m *Manager) OpenSession(o types.SessionOptions) (*Session, error) { return m.holdings.open(o) }

// Session finds a session that other connections may join, by its id. It fails with
// [ErrSessionEnded].
func (m *Manager) Session(id string) (*Session, error) { return m.holdings.session(id) }

// state is what the gauges show.
func (m *Manager) state() observe.State {
	st := observe.State{Ready: m.Ready() == nil, Draining: m.isDraining()}
	st.Leases, st.LeaseExpiry, st.LeaseLeft = m.leases.left(clock.Read(m.clk))
	m.holdings.observe(&st)
	return st
}

// listen is how the manager tells an engine whether it needs news.
func listen(st store.Store) func(on bool) {
	if l, ok := st.(store.Listener); ok {
		return l.Listen
	}
	return func(bool) {}
}

// News takes the store's news to the part that it is for: see [store.Store.Start]. It does
// not block.
func (m *Manager) News(n store.News) {
	switch {
	case n.Signals:
		m.signals.Poll()
	case n.Event != nil:
		m.watches.Receive(*n.Event)
	case n.Attempt == store.EveryWait.Attempt:
		m.signals.Poll()
		m.watches.Recheck()
		m.acquirer.queue.hint(m.acquirer.queue.all())
	default:
		m.acquirer.queue.news(n)
	}
}

// Start begins to renew leases and to watch the queue.
func (m *Manager) Start(context.Context) error {
	m.spawn(func() { m.sweeping.run(m.ctx) })
	m.spawn(func() { m.renewLoop(m.ctx) })
	m.spawn(func() { m.acquirer.queue.watch(m.ctx) })
	m.obs.ObserveFleet(m.Fleet)
	m.spawn(func() { m.watches.Keep(m.ctx) })
	m.spawn(func() { m.watches.Look(m.ctx) })
	return nil
}

// Ready is nil when locks can be had, [ErrDraining] during shutdown, or why not:
// the store cannot serve, or the leases of predecessors are not revoked yet.
func (m *Manager) Ready() error {
	switch err := m.st.Ready(); {
	case m.isDraining():
		return types.ErrDraining
	case err == nil && m.reaping.Load():
		return errReaping
	default:
		return err
	}
}

// Drain refuses new acquires and ends those that wait. Releases still work.
func (m *Manager) Drain() { m.drainOnce.Do(func() { close(m.draining) }) }

func (m *Manager) isDraining() bool { return closed(m.draining) }

// Idle returns a channel that is closed once no session holds a lock, at the
// latest by Stop. Ask for it after Drain: before, a lock may be granted at any time.
func (m *Manager) Idle() <-chan struct{} {
	const pause = 20 * time.Millisecond
	idle := make(chan struct{})
	running := m.spawn(func() {
		defer close(idle)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for !m.holdings.empty() {
			select {
			case <-tick.C:
			case <-m.ctx.Done():
				return
			}
		}
	})
	if !running {
		close(idle)
	}
	return idle
}

// Stop ends all sessions, releases what they hold, revokes the leases, and
// returns. It takes at most a few times the store's timeout. The store is stopped
// after it.
func (m *Manager) Stop() {
	m.Drain()
	m.stop.Do(func() {
		m.endSessions()
		m.cancel() // before the revocation: nothing renews or opens a lease any more
		m.background.join()
		m.limited(func(ctx context.Context) {
			m.lanes.Openings.Stop(ctx)
			m.lanes.Revocations.Stop(ctx)
			m.lanes.Acquires.Stop(ctx)
			m.lanes.Enqueues.Stop(ctx)
			m.acquirer.queue.callersLeft() // their calls may not have heard of the drain yet
			m.lanes.Cancels.Stop(ctx)
		})
		m.revokeAll()
		m.retries.hurry()
		m.limited(func(ctx context.Context) {
			m.lanes.Withdrawals.Stop(ctx)
			m.lanes.Amends.Stop(ctx)
			m.lanes.Reads.Stop(ctx)
			m.lanes.Signals.Stop(ctx)
			m.lanes.Releases.Stop(ctx)
		})
	})
}

// LeftNothing reports, after Stop, whether the store has confirmed that all leases
// of this sidecar and of its predecessors are revoked.
func (m *Manager) LeftNothing() bool {
	return m.leftUnrevoked.Load() == 0 && len(m.leases.unrevoked()) == 0
}

// limited runs a part of Stop, which the store may hold up for one timeout.
func (m *Manager) limited(part func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.StoreTimeout)
	defer cancel()
	part(ctx)
}

// endSessions ends all sessions and waits, for as long as the store may take,
// until what they held is released.
func (m *Manager) endSessions() {
	sessions := m.holdings.all()
	released := make([]<-chan struct{}, len(sessions))
	for i, s := range sessions {
		released[i] = s.End(types.EndShutdown)
	}
	timer := time.NewTimer(m.cfg.StoreTimeout)
	defer timer.Stop()
	for _, done := range released {
		select {
		case <-done:
		case <-timer.C:
			m.log.Warn("not all locks were released in time, their leases are revoked now")
			return
		}
	}
}

// revokeAll declares all leases of this sidecar dead, also those whose revocation Stop
// has interrupted.
func (m *Manager) revokeAll() {
	for _, l := range m.leases.all() {
		l.lost.Store(true)
		m.leases.remove(l) // a late call must not find it again and again
		if l.life.Load() != nil {
			m.leases.mustRevoke(l)
		}
	}
	unrevoked := m.leases.unrevoked()
	if len(unrevoked) == 0 {
		return
	}
	ids := make([]store.LeaseID, len(unrevoked))
	for i, l := range unrevoked {
		ids[i] = l.id
	}
	m.limited(func(ctx context.Context) {
		if err := m.st.Revoke(ctx, ids); err != nil {
			m.log.Warn("leases not revoked, their locks are free when they expire", "leases", len(ids), "error", err)
			return
		}
		m.leases.revoked(unrevoked...)
	})
}

// pin returns the lease for a TTL, with one user more. If it is new, it is being
// opened, and the trace of the call in ctx shows that.
func (m *Manager) pin(ctx context.Context, ttl time.Duration) *lease {
	l, isNew := m.leases.pin(ttl)
	if isNew {
		m.startOpening(ctx, l)
	}
	return l
}

func (m *Manager) startOpening(call context.Context, l *lease) {
	if !m.spawn(func() { m.open(call, l) }) {
		m.leases.remove(l)
		l.openErr = types.ErrDraining
		close(l.opened)
	}
}

// open opens a lease in the store, also when the call that needs it first has left.
func (m *Manager) open(call context.Context, l *lease) {
	ctx, cancel := context.WithTimeout(m.obs.Along(m.ctx, call), m.cfg.StoreTimeout)
	defer cancel()
	sent := m.clk.Now()
	suspended := m.clk.Suspended(sent)
	m.leases.mu.Lock() // the renewer may look at it as soon as it is confirmed
	l.renewAt = sent.Add(time.Duration(float64(interval(l.ttl, m.cfg.RenewInterval)) * clock.Jitter()))
	m.leases.mu.Unlock()
	_, err := lanes.Submit(ctx, m.lanes.Openings, store.NewLease{ID: l.id, TTL: l.ttl})
	if ctx.Err() != nil && err != nil { // it goes on all the same
		err = &store.Error{Op: "open lease", Err: err, Unknown: true}
	}
	tooLate := err == nil && !l.confirm(m.clk, sent, suspended)
	if tooLate {
		err = &store.Error{Op: "open lease", Err: context.DeadlineExceeded}
	}
	if err != nil {
		m.leases.remove(l)
		l.openErr = err
		close(l.opened)
		if tooLate || store.OutcomeUnknown(err) {
			m.revoke(l)
		}
		return
	}
	close(l.opened)
	m.leases.opened(l)
}

// lose declares an own lease lost: every lock on it is lost and its session is
// told, every wait on it begins again under a fresh lease, and it is revoked as
// soon as the store answers. It is never revived.
func (m *Manager) lose(l *lease, reason types.LostReason) {
	if !l.lost.CompareAndSwap(false, true) {
		return
	}
	m.leases.remove(l)
	locks := m.holdings.on(l)
	for _, h := range locks {
		h.loseUnder(l, reason)
	}
	m.leases.changed() // what is being moved to it cannot be trusted either
	m.watches.LeaseEnded()
	waits := m.acquirer.queue.on(l)
	for _, b := range waits {
		b.leaseGone(l)
	}
	m.log.Error("lease lost", "lease", l.id, "ttl", l.ttl.String(), "reason", string(reason), "locks", len(locks), "waits", len(waits))
	m.revoke(l)
}
