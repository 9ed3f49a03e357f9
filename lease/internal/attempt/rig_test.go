package attempt

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/heldcache"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	leaseTTL     = 15 * time.Second
	storeTimeout = time.Second
)

// movableClock is the clock of the bubble, and can jump ahead without its timers.
type movableClock struct {
	clock.System
	ahead atomic.Int64
}

func (c *movableClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// stop makes the process stand still for a while, together with its timers.
func (c *movableClock) stop(d time.Duration) { c.ahead.Add(int64(d)) }

// bubble runs a test in virtual time, once with lanes that batch and once with inline ones.
func bubble(t *testing.T, test func(t *testing.T, inline bool)) {
	t.Helper()
	for name, inline := range map[string]bool{"batched": false, "inline": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, inline) })
		})
	}
}

// rig is an acquirer on a recorder. Nothing renews its leases, so each has one deadline. Its helpers: attempt, sessionFor and start; lock
// by others: holdElsewhere; checks: must, nothingLeft; the store: recorder.
type rig struct {
	t      *testing.T
	space  *memory.Space
	clk    *movableClock
	st     *recorder
	aq     *Acquirer
	leases *heartbeat.Leases
}

func newRig(t *testing.T, inline bool) *rig {
	t.Helper()
	r := &rig{t: t, space: memory.NewSpace(), clk: &movableClock{}}
	r.st = &recorder{
		Store: r.space.Open(store.Identity{Namespace: "test", Instance: "a", Pod: "a"}), inline: inline, held: map[string]chan bool{},
	}
	cfg := types.Config{
		Instance: "a", Pod: "a", TTL: leaseTTL, RenewInterval: leaseTTL / 3, StoreTimeout: storeTimeout, PollInterval: time.Second,
		CacheSize: 10, CacheTTL: 100 * time.Millisecond, BatchMax: 10, MaxSessions: 10, MaxLocksPerSession: 10, MaxWaiters: 10,
		Logger: slog.New(slog.DiscardHandler), Clock: r.clk,
	}
	ctx, cancel := context.WithCancel(context.Background())
	later, obs, draining := background.New(ctx, cfg.Clock), observe.New(cfg.Logger, nil, nil, inline), make(chan struct{})
	ls := lanes.New(cfg, r.st, obs, readiness.New(cfg, r.st), draining)
	r.leases = heartbeat.New(ctx, heartbeat.Config{
		TTL: cfg.TTL, RenewInterval: cfg.RenewInterval, StoreTimeout: storeTimeout, Store: r.st, Lanes: ls, Clock: cfg.Clock,
		Log: cfg.Logger, Observer: obs, Background: later, Users: r,
	})
	cache, err := heldcache.New(cfg.CacheSize, cfg.CacheTTL, cfg.Clock)
	r.must(err)
	r.aq, err = New(ctx, Config{
		Config: cfg, Observer: obs, Store: r.st, Lanes: ls, HeldCache: cache, Leases: r.leases, Background: later, Draining: draining,
	})
	r.must(err)
	r.must(r.st.Start(ctx, func(store.News) {})) // attempts learn of nothing by news
	t.Cleanup(func() {
		cancel()
		later.Hurry()
		later.Join()
		ended, stop := context.WithCancel(context.Background())
		stop()
		ls.Acquires.Stop(ended)
		ls.Enqueues.Stop(ended)
		ls.Cancels.Stop(ended)
		ls.Withdrawals.Stop(ended)
		ls.Releases.Stop(ended)
		ls.Openings.Stop(ended)
		ls.Revocations.Stop(ended)
		r.st.Stop()
	})
	return r
}

// The rig tells the users of its leases: see [heartbeat.Users].

func (r *rig) LeaseLost(l *heartbeat.Lease, reason types.LostReason) (locks, waits int) {
	for _, h := range r.aq.Holdings().On(l) {
		h.LoseUnder(l, reason)
	}
	return 0, r.aq.LeaseLost(l)
}

func (r *rig) LeaseRetired(*heartbeat.Lease) {}
func (r *rig) SignalsWait()                  {}
func (r *rig) Verify(context.Context, []*heartbeat.Lease, store.History, func(*heartbeat.Lease)) error {
	return nil
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// attempt makes an attempt of a call for one lock.
func (r *rig) attempt(req *types.Request) (*Call, *Attempt) {
	r.t.Helper()
	c := r.aq.NewCall(context.Background(), r.sessionFor(req), req)
	if c.S != nil {
		r.must(c.S.Admit(&c.Quota))
	}
	var came *Arrival
	if req.Wait != 0 {
		came = r.aq.arrivals.join(req)
	}
	b, err := c.NewAttempt(came)
	r.must(err)
	return c, b
}

// nothingLeft checks that no lock, waiter or remembered state is left, after all that is repeated.
func (r *rig) nothingLeft() {
	r.t.Helper()
	synctest.Wait()
	held, err := r.st.List(context.Background(), store.Query{Limit: 10})
	r.must(err)
	for _, l := range held {
		r.t.Errorf("%q is held, and %d wait", l.Key, l.QueueLength)
	}
	for what, n := range r.aq.Kept() {
		if n != 0 {
			r.t.Errorf("%d %s are kept", n, what)
		}
	}
	for _, l := range r.leases.All() {
		if n := l.Users(); n != 0 {
			r.t.Errorf("the lease has %d users", n)
		}
	}
}

// sessionFor opens a session for a request, unless it is bind:ttl.
func (r *rig) sessionFor(req *types.Request) *holdings.Session {
	r.t.Helper()
	if req.Bind == types.BindTTL {
		return nil
	}
	s, err := r.aq.Holdings().Open(types.SessionOptions{})
	r.must(err)
	return s
}

// start starts an attempt, and returns when it waits for something.
func (r *rig) start(b *Attempt) {
	b.Start(context.Background(), r.clk.Now())
	synctest.Wait()
}

// holdElsewhere lets another sidecar hold a key for a day, or until release.
func (r *rig) holdElsewhere(key string) (release func()) {
	r.t.Helper()
	other, lease := r.space.Open(store.Identity{Namespace: "test", Instance: "b", Pod: "b"}), uuid.New()
	r.must(other.Start(context.Background(), func(store.News) {}))
	r.t.Cleanup(other.Stop)
	r.must(other.OpenLeases(context.Background(), []store.NewLease{{ID: lease, TTL: 24 * time.Hour}}))
	answers, err := other.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}})
	r.must(err)
	if answers[0].Outcome != store.Granted {
		r.t.Fatalf("the other sidecar has got %v", answers[0].Outcome)
	}
	return func() {
		_, err := other.Release(context.Background(), []store.Claim{{Key: key, Token: answers[0].Token, Lease: lease}})
		r.must(err)
	}
}

// recorder is a memory store that records its operations on keys. It can hold their answers, and lose them.
type recorder struct {
	*memory.Store
	inline bool

	mu   sync.Mutex
	held map[string]chan bool // receives whether the answer is lost
	lose bool
	ops  []string
	last time.Time
}

// Traits says whether the store takes time, unlike memory.
func (d *recorder) Traits() store.Traits { return store.Traits{Inline: d.inline} }

var errLost = &store.Error{Op: "test", Err: errors.New("the answer is lost"), Unknown: true}

// hold holds the next question of an operation until answer is called.
func (d *recorder) hold(op string) (answer func(lost bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answered := make(chan bool, 1)
	d.held[op] = answered
	return func(lost bool) {
		select {
		case answered <- lost:
		default: // it was called before
		}
	}
}

// loseAll loses all later questions.
func (d *recorder) loseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose = true
}

// forget forgets what was recorded.
func (d *recorder) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = nil
}

// sent are the recorded operations.
func (d *recorder) sent() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.ops...)
}

// lastSent is when the last operation was sent.
func (d *recorder) lastSent() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// ask records a question, and asks it unless it is lost.
func ask[T, R any](ctx context.Context, d *recorder, op string, items []T, f func(context.Context, []T) ([]R, error)) ([]R, error) {
	d.mu.Lock()
	d.ops, d.last = append(d.ops, op), time.Now()
	held, lost := d.held[op], d.lose
	delete(d.held, op)
	d.mu.Unlock()
	if held != nil {
		lost = <-held
	}
	if lost {
		return nil, errLost
	}
	return f(context.WithoutCancel(ctx), items)
}

func (d *recorder) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return ask(ctx, d, "Acquire", asks, d.Store.Acquire)
}

func (d *recorder) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return ask(ctx, d, "Enqueue", asks, d.Store.Enqueue)
}

func (d *recorder) Cancel(ctx context.Context, attempts []store.Attempt) ([]store.Answer, error) {
	return ask(ctx, d, "Cancel", attempts, d.Store.Cancel)
}

func (d *recorder) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	return ask(ctx, d, "Withdraw", attempts, d.Store.Withdraw)
}

func (d *recorder) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	return ask(ctx, d, "Release", claims, d.Store.Release)
}
