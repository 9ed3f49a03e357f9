package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/lease/internal/watch"
	"github.com/locksidecar/locksidecar/store"
)

// Manager is the heart of a sidecar: it knows the sessions, the leases and the
// locks granted here, and puts the store's operations in order.
type Manager struct {
	cfg types.Config
	st  store.Store
	clk clock.Clock
	log *slog.Logger
	obs *observe.Observer

	acquires    *batcher.Lane[store.Ask, store.Answer]
	enqueues    *batcher.Lane[store.Ask, store.Answer]
	cancels     *batcher.Lane[store.Attempt, store.Answer]
	releases    *batcher.Lane[store.Claim, store.Verdict]
	amends      *batcher.Lane[store.Change, store.Verdict]
	reads       *batcher.Lane[string, store.Lock]
	withdrawals *batcher.Lane[store.Attempt, store.Outcome]
	requires    *batcher.Lane[store.Signal, store.ClaimStatus]
	openings    *batcher.Lane[store.NewLease, struct{}]
	revocations *batcher.Lane[store.LeaseID, struct{}]

	leases    *leaseSet
	holdings  *holdings
	releaser  *releaser
	queue     *queue
	arrivals  *arrivals
	watches   *watch.Watches
	signals   *signals
	fleet     *fleet
	heldCache *heldcache.Cache

	requests repeat.Requests // those with BindTTL
	groups   chan struct{}   // a token for each question about several keys

	reaping       atomic.Bool  // the leases of predecessors are not revoked yet
	leftUnrevoked atomic.Int64 // revocations that nobody tries any more, and of predecessors
	waiters       atomic.Int64
	sweeping      *sweeping
	orphans       orphans

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
	if err := m.requests.Remember(rememberedGrants); err != nil {
		return nil, err
	}
	m.queue, m.signals, m.arrivals = newQueue(cfg, m.obs, st, m.spawn), newSignals(m.ctx, cfg, st, signalLocks{m}, m.spawn), newArrivals(m.enqueueAll)
	m.watches, m.groups = m.newWatches(), newGroups()
	m.sweeping = newSweeping(st, m.clk, m.log)
	m.fleet = newFleet(m.ctx, cfg, st, m.spawn)
	m.orphans.m, m.orphans.sought = m, make(map[*lease]*reconciliation)
	m.openLanes()
	m.releaser = &releaser{lane: m.releases, retries: &m.retries, heldCache: m.heldCache, log: m.log}
	m.holdings = m.newHoldings()
	m.obs.Observe(m.state)
	return m, nil
}

// newHoldings makes those of a manager.
func (m *Manager) newHoldings() *holdings {
	cfg := m.cfg
	return &holdings{
		cfg: holdingsConfig{
			Instance: cfg.Instance, Pod: cfg.Pod, TTL: cfg.TTL,
			MaxSessions: cfg.MaxSessions, MaxLocksPerSession: cfg.MaxLocksPerSession,
		},
		clk: m.clk, began: m.clk.Now(), obs: m.obs, sender: m.releaser, leaseFor: m.leases.get, queueLength: m.queue.length,
		held: newHeldSet(), ends: newRecentEnds(), draining: m.draining, sessions: make(map[string]*Session),
	}
}

// OpenSession opens a session. It fails with [LimitError], and with [ErrDraining] while the
// sidecar shuts down.
func (m *Manager) OpenSession(o types.SessionOptions) (*Session, error) { return m.holdings.open(o) }

// Session finds a session that other connections may join, by its id. It fails with
// [ErrSessionEnded].
func (m *Manager) Session(id string) (*Session, error) { return m.holdings.session(id) }

// maxTogether is the most calls that one statement enqueues. All may be for one
// key, and its row is locked until the statement is over: releases of it wait for that.
// A thousand would keep it for about as long as a release waits for a row (0.1 s).
const maxTogether = 250

// openLanes makes the lanes to the store. Renewals and checks have none: they
// are batches already, and never wait behind anything.
func (m *Manager) openLanes() {
	lane := batcher.Config{Max: m.cfg.BatchMax, Timeout: m.cfg.StoreTimeout, Inline: m.inline}
	bounded := lane
	bounded.Room = max(m.cfg.MaxWaiters, m.cfg.BatchMax)
	byKey := func(a store.Ask) string { return a.Key }
	locked := func(a store.Answer) bool { return a.Outcome == store.RowLocked }
	claimLocked := func(v store.Verdict) bool { return v.Status == store.ClaimRowLocked }
	acquires := bounded
	acquires.Refuse = m.draining
	m.acquires = batcher.New(m.obs.Lane("acquire", acquires), byKey, m.st.Acquire, locked)
	// Enqueues of one key share a statement, in their order. The queue limits them: answers of
	// another lane submit some, and must not have to wait.
	together := lane
	together.Together, together.Max = true, min(lane.Max, maxTogether)
	m.enqueues = batcher.New(m.obs.Lane("enqueue", together), byKey, m.st.Acquire, locked)
	m.amends = batcher.New(m.obs.Lane("amend", bounded), func(c store.Change) string { return c.Key }, m.st.Amend, claimLocked)
	m.reads = batcher.New(m.obs.Lane("get", bounded), func(key string) string { return key }, m.st.Get, nil)
	m.requires = batcher.New(m.obs.Lane("signal", bounded), func(s store.Signal) string { return s.Key }, m.signalHolders,
		func(s store.ClaimStatus) bool { return s == store.ClaimRowLocked })
	apart := lane
	apart.Inline = false // they may hang, and have a limit of their own
	m.openings = batcher.New(m.obs.Lane("open", apart), func(l store.NewLease) string { return string(l.ID[:]) }, forAll(m.st.OpenLeases), nil)
	m.revocations = batcher.New(m.obs.Lane("revoke", apart), func(l store.LeaseID) string { return string(l[:]) }, forAll(m.st.Revoke), nil)
	// A lane that hands something back refuses nothing: the grants that it frees are bounded.
	byGrant := func(a store.Attempt) string { return string(a.ID[:]) }
	m.cancels = batcher.New(m.obs.Lane("cancel", lane), byGrant, m.st.Cancel, locked)
	m.withdrawals = batcher.New(m.obs.Lane("withdraw", lane), byGrant, m.st.Withdraw, func(o store.Outcome) bool { return o == store.RowLocked })
	m.releases = batcher.New(m.obs.Lane("release", lane), func(c store.Claim) string { return c.Key }, m.st.Release, claimLocked)
	if st, ok := m.st.(store.Immediate); ok && m.inline {
		m.acquires.Alone(st.AcquireOne)
		m.releases.Alone(st.ReleaseOne)
	}
}

// forAll makes an operation that has no answers one of a lane.
func forAll[T any](f func(context.Context, []T) error) func(context.Context, []T) ([]struct{}, error) {
	return func(ctx context.Context, items []T) ([]struct{}, error) {
		return make([]struct{}, len(items)), f(ctx, items)
	}
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
		m.signals.poll()
	case n.Event != nil:
		m.watches.Receive(*n.Event)
	case n.Attempt == store.EveryWait.Attempt:
		m.signals.poll()
		m.watches.Recheck()
		m.queue.hint(m.queue.all())
	default:
		m.queue.news(n)
	}
}

// Start begins to renew leases and to watch the queue.
func (m *Manager) Start(context.Context) error {
	m.spawn(func() { m.sweeping.run(m.ctx) })
	m.spawn(func() { m.renewLoop(m.ctx) })
	m.spawn(func() { m.queue.watch(m.ctx) })
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

func (m *Manager) isDraining() bool {
	select {
	case <-m.draining:
		return true
	default:
		return false
	}
}

// Idle returns a channel that is closed once no session holds a lock, at the
// latest by Stop. Ask for it after Drain: before, a lock may be granted at any time.
func (m *Manager) Idle() <-chan struct{} {
	const pause = 20 * time.Millisecond
	idle := make(chan struct{})
	running := m.spawn(func() {
		defer close(idle)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for m.holdings.locks.Load() > 0 {
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
			m.openings.Stop(ctx)
			m.revocations.Stop(ctx)
			m.acquires.Stop(ctx)
			m.enqueues.Stop(ctx)
			m.queue.callersLeft() // their calls may not have heard of the drain yet
			m.cancels.Stop(ctx)
		})
		m.revokeAll()
		m.retries.hurry()
		m.limited(func(ctx context.Context) {
			m.withdrawals.Stop(ctx)
			m.amends.Stop(ctx)
			m.reads.Stop(ctx)
			m.requires.Stop(ctx)
			m.releases.Stop(ctx)
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
	l.renewAt = sent.Add(time.Duration(float64(interval(l.ttl, m.cfg.RenewInterval)) * jitter()))
	m.leases.mu.Unlock()
	_, err := submit(ctx, m.openings, store.NewLease{ID: l.id, TTL: l.ttl})
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
		h.lose(reason)
	}
	m.watches.LeaseLost()
	waits := m.queue.on(l)
	for _, b := range waits {
		b.leaseGone()
	}
	m.log.Error("lease lost", "lease", l.id, "ttl", l.ttl.String(), "reason", string(reason), "locks", len(locks), "waits", len(waits))
	m.revoke(l)
}

// submit hands one item to a lane and waits for the answer, or until the call
// has left: then the operation goes on and its answer is not heard.
func submit[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T) (R, error) {
	return submitAnd(ctx, lane, item, func(R) {})
}

// submitAnd is submit for an answer that must be heard even if the call has
// left. then is called only when there was no error.
func submitAnd[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T, then func(R)) (R, error) {
	type answer struct {
		r   R
		err error
	}
	done := make(chan answer, 1)
	err := lane.Submit(ctx, item, func(r R, err error) {
		if err == nil {
			then(r)
		}
		done <- answer{r, err}
	})
	if err != nil {
		return *new(R), refusal(ctx, err)
	}
	select {
	case a := <-done:
		return a.r, refusal(ctx, a.err)
	case <-ctx.Done():
		return *new(R), errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
}

// refusal says in the words of this package why a lane did not take an item.
func refusal(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, batcher.ErrStopped):
		return types.ErrDraining
	case ctx.Err() != nil:
		return errors.Join(types.ErrCallerLeft, err)
	default:
		return err
	}
}
