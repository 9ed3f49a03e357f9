package lease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/store"
)

// Manager is the heart of a sidecar: it knows the sessions, the leases and the
// locks granted here, and puts the store's operations in order.
type Manager struct {
	cfg Config
	st  store.Store
	clk Clock
	log *slog.Logger

	acquires *batcher.Lane[store.Ask, store.Answer]
	enqueues *batcher.Lane[store.Ask, store.Answer]
	cancels  *batcher.Lane[store.Attempt, store.Answer]
	releases *batcher.Lane[store.Claim, store.Verdict]
	amends   *batcher.Lane[store.Change, store.Verdict]
	reads    *batcher.Lane[string, store.Lock]

	book    *book
	held    *heldSet
	queue   *queue
	denials *denials
	ended   *lru.Cache[grantRef, ending]

	requestsMu sync.Mutex
	requests   *lru.Cache[store.GrantID, *repeats]

	sessionsMu sync.Mutex
	sessions   map[string]*Session

	sessionLocks atomic.Int64 // locks that sessions hold
	waiters      atomic.Int64
	sweepAt      time.Time // the keeper's own

	// draining is closed by Drain.
	draining  chan struct{}
	drainOnce sync.Once

	ctx    context.Context // of what runs in the background
	cancel context.CancelFunc
	stop   sync.Once
	background
}

// New makes a manager on a store, which it uses from Start on.
func New(cfg Config, st store.Store) (*Manager, error) {
	m := &Manager{
		cfg: cfg, st: st, clk: cfg.Clock, log: cfg.Logger,
		book: newBook(), held: newHeldSet(), sessions: make(map[string]*Session),
		draining: make(chan struct{}),
	}
	if m.clk == nil {
		m.clk = SystemClock{}
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var err error
	if m.denials, err = newDenials(cfg.CacheSize, cfg.CacheTTL, m.clk); err != nil {
		return nil, err
	}
	if m.ended, err = lru.New[grantRef, ending](rememberedGrants); err != nil {
		return nil, err
	}
	if m.requests, err = lru.New[store.GrantID, *repeats](rememberedGrants); err != nil {
		return nil, err
	}
	m.queue = newQueue(m)
	m.openLanes()
	st.OnNews(m.queue.news)
	return m, nil
}

// openLanes makes the lanes to the store. Renewals and checks have none: they
// are batches already, and never wait behind anything.
func (m *Manager) openLanes() {
	lane := batcher.Config{Max: m.cfg.BatchMax, Timeout: m.cfg.StoreTimeout, Inline: m.st.Traits().Inline}
	bounded := lane
	bounded.Room = max(m.cfg.MaxWaiters, m.cfg.BatchMax)
	byKey := func(a store.Ask) string { return a.Key }
	m.acquires = batcher.New(bounded, byKey, m.st.Acquire)
	m.enqueues = batcher.New(bounded, byKey, m.st.Enqueue)
	m.amends = batcher.New(bounded, func(c store.Change) string { return c.Key }, m.st.Amend)
	m.reads = batcher.New(bounded, func(key string) string { return key }, m.st.Get)
	// What gives something back is never refused: what was taken is bounded.
	m.cancels = batcher.New(lane, func(a store.Attempt) string { return string(a.Grant[:]) }, m.st.CancelWaits)
	m.releases = batcher.New(lane, func(c store.Claim) string { return c.Key }, m.st.Release)
}

// Start begins to renew leases and to watch the queue.
func (m *Manager) Start(context.Context) error {
	m.sweepAt = m.clk.Now().Add(jittered(sweepInterval))
	m.spawn(func() { m.keep(m.ctx) })
	m.spawn(func() { m.queue.watch(m.ctx) })
	return nil
}

// Ready is nil when locks can be had, [ErrDraining] during shutdown, or why the
// store cannot serve.
func (m *Manager) Ready() error {
	if m.isDraining() {
		return ErrDraining
	}
	return m.st.Ready()
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

// Idle returns a channel that is closed once no session holds a lock. Ask for it
// after Drain: before, a lock may be granted at any time.
func (m *Manager) Idle() <-chan struct{} {
	const pause = 20 * time.Millisecond
	idle := make(chan struct{})
	m.spawn(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for m.sessionLocks.Load() > 0 {
			select {
			case <-tick.C:
			case <-m.ctx.Done():
				return
			}
		}
		close(idle)
	})
	return idle
}

// Stop ends all sessions, releases what they hold, buries the leases, and
// returns. It takes at most a few times the store's timeout. The store is stopped
// after it.
func (m *Manager) Stop() {
	m.Drain()
	m.stop.Do(func() {
		m.endSessions()
		m.cancel() // before the burial: nothing renews or opens a lease any more
		m.background.join()
		m.acquires.Stop()
		m.enqueues.Stop()
		m.cancels.Stop()
		m.buryAll()
		m.amends.Stop()
		m.reads.Stop()
		m.releases.Stop()
	})
}

// endSessions ends all sessions and waits, for as long as the store may take,
// until what they held is released.
func (m *Manager) endSessions() {
	m.sessionsMu.Lock()
	sessions := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		sessions = append(sessions, s)
	}
	m.sessionsMu.Unlock()
	released := make([]<-chan struct{}, len(sessions))
	for i, s := range sessions {
		released[i] = s.End(EndShutdown)
	}
	timer := time.NewTimer(m.cfg.StoreTimeout)
	defer timer.Stop()
	for _, done := range released {
		select {
		case <-done:
		case <-timer.C:
			m.log.Warn("not all locks were released in time, their leases are buried now")
			return
		}
	}
}

// buryAll declares all leases of this sidecar dead.
func (m *Manager) buryAll() {
	var ids []store.LeaseID
	for _, l := range m.book.all() {
		l.lost.Store(true)
		if l.life.Load() != nil {
			ids = append(ids, l.id)
		}
	}
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.StoreTimeout)
	defer cancel()
	if err := m.st.Bury(ctx, ids); err != nil {
		m.log.Warn("leases not buried, their locks are free when they expire", "leases", len(ids), "error", err)
	}
}

// forget takes an ended session off the list.
func (m *Manager) forget(s *Session) {
	m.sessionsMu.Lock()
	defer m.sessionsMu.Unlock()
	delete(m.sessions, s.id)
}

// lease returns the lease for a TTL, pinned and open.
func (m *Manager) lease(ctx context.Context, ttl time.Duration) (*renewed, error) {
	for {
		l, open, err := m.book.pin(ttl)
		if err != nil {
			return nil, err
		}
		if open && !m.spawn(func() { m.open(l) }) {
			l.openErr = ErrDraining
			close(l.opened)
		}
		select {
		case <-l.opened:
		case <-ctx.Done():
			l.unpin()
			return nil, ErrAbandoned
		}
		switch {
		case l.openErr != nil:
			l.unpin()
			return nil, l.openErr
		case l.alive(m.clk):
			return l, nil
		}
		l.unpin()
		m.lose(l, l.lossReason()) // found dead before the keeper did
	}
}

// open opens a lease in the store.
func (m *Manager) open(l *renewed) {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.StoreTimeout)
	defer cancel()
	sent, suspended := m.clk.Now(), m.clk.Suspended()
	err := m.st.OpenLeases(ctx, []store.NewLease{{ID: l.id, TTL: l.ttl}})
	if err == nil && !l.confirm(m.clk, sent, suspended) {
		err = &store.Error{Op: "open lease", Err: context.DeadlineExceeded}
	}
	if err != nil {
		m.book.remove(l)
		l.openErr = err
		close(l.opened)
		if store.OutcomeUnknown(err) {
			m.bury(l)
		}
		return
	}
	m.book.mu.Lock()
	l.renewAt = sent.Add(time.Duration(float64(interval(l.ttl, m.cfg.RenewInterval)) * jitter()))
	m.book.mu.Unlock()
	close(l.opened)
	m.book.changed()
}

// lose declares an own lease lost: every lock on it is lost and its session is
// told, every wait on it begins again under a fresh lease, and it is buried as
// soon as the store answers. It is never revived.
func (m *Manager) lose(l *renewed, reason LostReason) {
	if !l.lost.CompareAndSwap(false, true) {
		return
	}
	m.book.remove(l)
	locks := m.held.on(l)
	for _, h := range locks {
		h.s.loseLock(h, reason)
	}
	waits := m.queue.on(l)
	for _, b := range waits {
		b.leaseGone()
	}
	m.log.Error("lease lost", "lease", l.id, "ttl", l.ttl, "reason", string(reason), "locks", len(locks), "waits", len(waits))
	m.bury(l)
}

// undo frees what an attempt of unknown outcome may have got, for as long as it
// may last.
func (m *Manager) undo(a store.Attempt, ttl time.Duration, settled func()) {
	m.log.Warn("outcome of an acquire is unknown, undoing it", "key", a.Key)
	m.inBackground(func(ctx context.Context) bool {
		defer m.denials.drop(a.Key)
		return m.st.Undo(ctx, []store.Attempt{a}) == nil
	}, ttl, settled)
}

// submit hands one item to a lane and waits for the answer, or until the call
// has left: then the operation goes on and its answer is not heard.
func submit[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T) (R, error) {
	type answer struct {
		r   R
		err error
	}
	done := make(chan answer, 1)
	if err := lane.Submit(ctx, item, func(r R, err error) { done <- answer{r, err} }); err != nil {
		var none R
		return none, err
	}
	select {
	case a := <-done:
		return a.r, a.err
	case <-ctx.Done():
		var none R
		return none, ErrAbandoned
	}
}
