package lease

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock is the clock of the bubble, and can jump ahead without its timers.
type fakeClock struct {
	ahead, suspended atomic.Int64
	// next, if set, runs at a certain read of the clock.
	next atomic.Pointer[alarm]
}

func (c *fakeClock) Now() time.Time {
	c.read()
	return time.Now().Add(time.Duration(c.ahead.Load()))
}

// Suspended counts as a read, because a lease is judged by the value before it.
func (c *fakeClock) Suspended(time.Time) time.Duration {
	c.read()
	return time.Duration(c.suspended.Load())
}

// alarm runs a function once, in the goroutine that makes a certain read of the clock.
type alarm struct {
	left atomic.Int64
	run  func()
}

func (c *fakeClock) read() {
	if a := c.next.Load(); a != nil && a.left.Add(-1) == -1 {
		a.run()
	}
}

// atRead runs f at the nth read of the clock. After next is cleared, f does not run, also not by a
// read at that moment.
func (c *fakeClock) atRead(moment int, f func()) {
	a := &alarm{run: f}
	a.left.Store(int64(moment))
	c.next.Store(a)
}

// stop makes the process stand still for a while, together with its timers.
func (c *fakeClock) stop(d time.Duration) { c.ahead.Add(int64(d)) }

// The helpers of the tests, by what they do; TestIndex keeps this list complete. Most return the manager's answer, or fail the test if it
// is an error.
//
// A sidecar: newRig, another (on the same space), newRigOn, newRigWith; options: with, inline, polling; bubble runs a test in virtual time,
// batched and inline. Other worlds: newGathering (gather_test.go), newWorld (property_test.go), newSpans (spans_test.go), eachStage
// (attempt_test.go), cohort, cohortWithData (cohort_test.go), duringAMove (rotate_test.go).
//
// Time: fakeClock.stop (the process stands still), atRead (at a read of the clock), suspended.
//
// The store: double_test.go (faults by operation: set, lift, hold, holdAnswer, …); revokeLeases, forget, orphan: without the sidecar's knowledge;
// stored (what it has of a key), lease (the lease's id). Its news: newsOf, hint, handOver (its news is lost).
//
// Sessions: eitherSession, connectionSession, explicitSession, sessionOf; what they were told: losses, stops.
//
// Requests: as (an owner), hour (MinHold), once (a session's, with an id), repeatable (bind:ttl, with an id), waits.
//
// Calls: try, lock, lockTTL, get (any request), share, denied and isDenied (must not be granted); beside the test: ask, wait
// (queued when it returns), waiting (behind another sidecar), waitShare, askAll, waitAll, won (granted, not delivered); their answers:
// isOver, granted, skipped, inVain.
//
// Kept keys (keep_test.go): keepers (two sidecars that keep keys), has (what the store has), mayKeep, keeps, takes, uses (so often), isKept, gets (granted at once), unlessLocked; noKept (before a test that is not about them looks at the store).
//
// Ends: release (an answer's or a grant's lock), tryRelease (returns the error), exit and exitAll (one entry each), succeed (with success),
// releaseBy, releaseRequest, releasing (by request id), downgrade; amend, patch.
//
// Checks: must, listened (what the store was told about listening), nothingLeft (nothingStored, nothingRemembered), isFree, isHeldUnder, mustBe, nothingUnder, onlyOthersLeft, nobodyIsSkipped, isRotated,
// inOrder; metrics: counted, acquired; rotation and watch are of their files.

// rig is a manager on a store that can be broken.
type rig struct {
	t      tester
	space  *memory.Space
	st     *double
	clk    *fakeClock
	m      *Manager
	counts *counts

	sessions atomic.Int64

	mu   sync.Mutex
	lost []types.Lost
	at   []time.Time // times of the losses
	told []types.Stop
}

// tester is the common part of testing.T, testing.B and rapid.T.
type tester interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

type option func(*types.Config, *store.Traits)

// keeping makes the sidecar keep keys. With the flag -keep, all sidecars do.
func keeping(c *types.Config, t *store.Traits) { c.Keep, t.Hears = 200*time.Millisecond, true }

var keepAll = flag.Bool("keep", false, "run all tests with sidecars that keep keys")

// inline and polling change the traits of the store.
func inline(_ *types.Config, t *store.Traits)  { t.Inline = true }
func polling(_ *types.Config, t *store.Traits) { t.Polls = true }

func with(change func(*types.Config)) option {
	return func(c *types.Config, _ *store.Traits) { change(c) }
}

// newRig starts a manager on an empty space. Its lanes batch, unless an option changes that.
func newRig(t tester, opts ...option) *rig { return newRigOn(t, memory.NewSpace(), "a", opts...) }

// another starts another sidecar on the same space.
func (r *rig) another(opts ...option) *rig { return newRigOn(r.t, r.space, "b", opts...) }

func newRigOn(t tester, space *memory.Space, name string, opts ...option) *rig {
	t.Helper()
	return newRigWith(t, space, newDouble(space.Open(store.Identity{Namespace: "test", Instance: name, Pod: "pod-" + name})), name, opts...)
}

// newRigWith starts a manager on a store, which may be broken already.
func newRigWith(t tester, space *memory.Space, st *double, name string, opts ...option) *rig {
	t.Helper()
	r := &rig{t: t, space: space, st: st, clk: &fakeClock{}, counts: newCounts(t)}
	cfg := types.Config{
		Instance: name, Pod: "pod-" + name, TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 100, CacheTTL: 100 * time.Millisecond,
		BatchMax: 100, MaxSessions: 100, MaxLocksPerSession: 20_000, MaxWaiters: 20_000,
		Logger: slog.New(slog.DiscardHandler), Clock: r.clk, Metrics: r.counts,
	}
	if *keepAll {
		keeping(&cfg, &r.st.traits)
	}
	for _, o := range opts {
		o(&cfg, &r.st.traits)
	}
	m, err := New(cfg, r.st)
	r.must(err)
	r.m = m
	r.must(r.st.Start(context.Background(), m.News))
	r.must(m.Start(context.Background()))
	if tb, ok := t.(testing.TB); ok {
		tb.Cleanup(m.Stop)
	}
	return r
}

// bubble runs a test in virtual time, once with lanes that batch and once with inline ones.
func bubble(t *testing.T, test func(t *testing.T, opt option)) {
	t.Helper()
	batched := func(*types.Config, *store.Traits) {}
	for name, opt := range map[string]option{"batched": batched, "inline": inline} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, opt) })
		})
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// eitherSession opens a session where the rule of the test holds for both kinds. The first call returns a connection's session, the next an
// explicit one, and so on in turn.
func (r *rig) eitherSession() *holdings.Session { return r.sessionOf(r.sessions.Add(1)%2 == 0) }

func (r *rig) connectionSession() *holdings.Session { return r.sessionOf(false) }

func (r *rig) explicitSession() *holdings.Session { return r.sessionOf(true) }

func (r *rig) sessionOf(explicit bool) *holdings.Session {
	r.t.Helper()
	s, err := r.m.OpenSession(types.SessionOptions{Explicit: explicit, OnLost: func(l types.Lost) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lost, r.at = append(r.lost, l), append(r.at, time.Now())
	}, OnStop: func(st types.Stop) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, st)
	}})
	r.must(err)
	return s
}

func (r *rig) losses() []types.Lost {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]types.Lost(nil), r.lost...)
}

// try asks once without waiting.
func (r *rig) try(s *holdings.Session, key string) (types.Grant, error) {
	return r.m.Acquire(context.Background(), s, types.Request{Key: key, NoCache: true})
}

// lock acquires a key that must be free.
func (r *rig) lock(s *holdings.Session, key string) types.Grant {
	r.t.Helper()
	g, err := r.try(s, key)
	r.must(err)
	return g
}

func (r *rig) lockTTL(key string, ttl time.Duration) types.Grant {
	r.t.Helper()
	g, err := r.m.Acquire(context.Background(), nil, types.Request{Key: key, Bind: types.BindTTL, TTL: ttl, NoCache: true})
	r.must(err)
	return g
}

func (r *rig) release(s *holdings.Session, g types.Grant) {
	r.t.Helper()
	_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token})
	r.must(err)
}

// answer is the result of an Acquire that runs beside the test.
type answer struct {
	g     types.Grant
	err   error
	after time.Duration
	at    time.Time
	s     *holdings.Session // session of the call
	done  chan struct{}
}

// ask acquires beside the test.
func (r *rig) ask(ctx context.Context, s *holdings.Session, req types.Request) *answer {
	a := &answer{s: s, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(a.done)
		a.g, a.err = r.m.Acquire(ctx, s, req)
		a.at = time.Now()
		a.after = a.at.Sub(began)
	}()
	return a
}

// wait starts an acquire beside the test, and returns when the call is queued.
func (r *rig) wait(s *holdings.Session, key string, wait time.Duration) *answer {
	a := r.ask(context.Background(), s, types.Request{Key: key, Wait: wait})
	synctest.Wait()
	return a
}

func (a *answer) isOver() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (a *answer) granted(t tester) types.Grant {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatalf("not granted: %v", a.err)
	}
	return a.g
}

// stored returns the store's state of a key, despite any faults.
func (r *rig) stored(key string) store.Lock {
	r.t.Helper()
	r.noKept()
	locks, err := r.st.Store.Get(context.Background(), []string{key})
	r.must(err)
	return locks[0]
}

// noKept gives kept keys up, in tests that are not about them, so that the store has what was released.
func (r *rig) noKept() {
	if r.m.acquirer.KeptKeys() > 0 {
		r.m.acquirer.GiveUpAll(nil)
		synctest.Wait()
	}
}

// nothingLeft checks that no lock, waiter or remembered state is left, in the store and in the
// manager.
func (r *rig) nothingLeft() {
	r.t.Helper()
	synctest.Wait()
	r.nothingStored()
	r.nothingRemembered()
}

func (r *rig) nothingStored() {
	r.t.Helper()
	r.noKept()
	ctx := context.Background()
	held, err := r.st.Store.List(ctx, store.Query{Limit: 1000})
	r.must(err)
	for _, l := range held {
		r.t.Errorf("%q is still held, %d waiting", l.Key, l.QueueLength)
	}
	var all []store.Attempt
	r.st.mu.Lock()
	for a := range r.st.attempts {
		all = append(all, a)
	}
	r.st.mu.Unlock()
	answers, err := r.st.Store.Check(ctx, all)
	r.must(err)
	for i, a := range answers {
		if a.Outcome != store.Gone {
			r.t.Errorf("an attempt at %q is left: %v", all[i].Key, a.Outcome)
		}
	}
}

func (r *rig) nothingRemembered() {
	r.t.Helper()
	synctest.Wait()
	r.noKept()
	var left []string
	note := func(what string, n int) {
		if n != 0 {
			left = append(left, fmt.Sprintf("%s: %d", what, n))
		}
	}
	for what, n := range r.m.acquirer.Remembered() {
		note(what, n)
	}
	for what, n := range r.m.holdings.Remembered() {
		note(what+" of sessions", n)
	}
	for _, l := range r.m.leases.All() {
		note("grants", int(l.Users()))
	}
	note("types of locks that are shown", len(r.m.state().Held))
	note("waits that are shown", r.counts.sum(r.counts.waits))
	if len(left) > 0 {
		r.t.Errorf("still kept: %v", left)
	}
}

// TestIndex: the index of helpers above names each method of a rig and of an answer.
func TestIndex(t *testing.T) {
	text, err := os.ReadFile("rig_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, index, _ := strings.Cut(string(text), "// The helpers of the tests")
	index, _, _ = strings.Cut(index, "\n\n")
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func \(\w+ \*(?:rig|answer)\) (\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(index) {
				t.Errorf("%s: the index does not name %s", file, m[1])
			}
		}
	}
}
