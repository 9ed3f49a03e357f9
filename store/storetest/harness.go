package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// longTTL outlives every test.
	longTTL = 5 * time.Minute
	// patience is how long the suite waits for an event.
	patience = 20 * time.Second
	// pause is the time between two attempts of a poll.
	pause = 15 * time.Millisecond
)

// The suite's times for things that must end. They are long enough for a few statements.
var (
	// shortTTL is for leases, shortHoldTime for holds.
	shortTTL, shortHoldTime = 400 * time.Millisecond, time.Second
	// oneStep is how exact the engine's times are.
	oneStep time.Duration
	// understated is by how much the rest of a lock's time may be too short in an answer.
	understated time.Duration
)

// Understates makes the suite suit an engine that subtracts its round trip from the rest of a lock's time. It is called
// before the tests.
func Understates(by time.Duration) { understated = by }

// Coarse makes the suite suit an engine that rounds TTLs and holds up to a multiple of step, at least to two steps. It is
// called before the tests.
func Coarse(step time.Duration) { shortTTL, shortHoldTime, oneStep = 2*step, 2*step, step }

// fixture contains what one test needs.
type fixture struct {
	*testing.T
	backend   Backend
	namespace string
}

func newFixture(t *testing.T, backend Backend) *fixture {
	t.Helper()
	return &fixture{T: t, backend: backend, namespace: "suite-" + uuid.NewString()}
}

// instance opens and starts an instance in the test's namespace, with a renewed
// lease that outlives the test.
func (f *fixture) instance(name string) *instance {
	f.Helper()
	return f.instanceIn(f.namespace, name)
}

func (f *fixture) instanceIn(namespace, name string) *instance {
	f.Helper()
	in := f.unstarted(namespace, name)
	if err := in.start(); err != nil {
		f.Fatalf("Start: %v", err)
	}
	in.poll("ready", func() bool { return in.Ready() == nil })
	in.Listen(true)
	in.lease = in.openLease(longTTL)
	return in
}

// unstarted opens an instance that receives news and is stopped when the test ends.
func (f *fixture) unstarted(namespace, name string) *instance {
	f.Helper()
	id := store.Identity{Namespace: namespace, Instance: name + "-" + uuid.NewString(), Pod: "pod-" + name}
	in := &instance{
		engine: engineOf(f.backend.Open(id)), fixture: f, id: id,
		heard: map[heardOf]chan store.News{}, recalls: map[string]chan struct{}{}, signals: make(chan struct{}, 1),
	}
	f.Cleanup(in.Stop)
	return in
}

// pair opens two instances in the same namespace.
func (f *fixture) pair() (a, b *instance) {
	f.Helper()
	return f.instance("a"), f.instance("b")
}

// ctx returns a context that limits one call.
func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	f.Cleanup(cancel)
	return ctx
}

// poll calls yes until it returns true.
func (f *fixture) poll(what string, yes func() bool) {
	f.Helper()
	for deadline := time.Now().Add(patience); !yes(); {
		if time.Now().After(deadline) {
			f.Fatalf("waited %v in vain for: %s", patience, what)
		}
		time.Sleep(pause) // between two attempts
	}
}

// instance is the store of one sidecar. Its methods end the test if the store fails. Goroutines of
// tests use the store itself.
type instance struct {
	engine
	*fixture
	id    store.Identity
	lease store.LeaseID

	mu     sync.Mutex
	heard  map[heardOf]chan store.News
	events []store.Event
	// recalls receive an item if their key is recalled.
	recalls map[string]chan struct{}
	// signals receives an item if there are signals for holders of this instance.
	signals chan struct{}
}

// heardOf identifies news about an attempt: its outcome, or a hint to check it. A hint may contain
// only half of the id.
type heardOf struct {
	grant store.HalfID
	hint  bool
}

var _ store.Store = (*instance)(nil)

func (in *instance) start() error { return in.Start(in.ctx(), in.hear) }

func (in *instance) hear(n store.News) {
	if n.Event != nil {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.events = append(in.events, *n.Event)
		return
	}
	if n.Signals {
		select {
		case in.signals <- struct{}{}:
		default: // a repeat
		}
		return
	}
	if n.Recall {
		select {
		case in.recallOf(n.Key) <- struct{}{}:
		default: // a repeat
		}
		return
	}
	select {
	case in.earFor(heardOf{store.HalfOf(n.ID), n.IsHint()}) <- n:
	default: // a repeat
	}
}

// newsOf receives the outcome of an attempt, and hintsOf hints to check it.
func (in *instance) newsOf(id store.AttemptID) chan store.News {
	return in.earFor(heardOf{store.HalfOf(id), false})
}

func (in *instance) hintsOf(id store.AttemptID) chan store.News {
	return in.earFor(heardOf{store.HalfOf(id), true})
}

func (in *instance) recallOf(key string) chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.recalls[key] == nil {
		in.recalls[key] = make(chan struct{}, 1)
	}
	return in.recalls[key]
}

func (in *instance) earFor(what heardOf) chan store.News {
	in.mu.Lock()
	defer in.mu.Unlock()
	ch := in.heard[what]
	if ch == nil {
		ch = make(chan store.News, 1)
		in.heard[what] = ch
	}
	return ch
}

// openLease opens a renewed lease.
func (in *instance) openLease(ttl time.Duration) store.LeaseID {
	in.Helper()
	id := uuid.New()
	if err := in.OpenLeases(in.ctx(), []store.NewLease{{ID: id, TTL: ttl}}); err != nil {
		in.Fatalf("OpenLeases: %v", err)
	}
	return id
}

func (in *instance) renew(leases ...store.LeaseID) []store.LeaseID {
	in.Helper()
	renewal, err := in.Renew(in.ctx(), leases)
	if err != nil {
		in.Fatalf("Renew: %v", err)
	}
	return renewal.Renewed
}

func (in *instance) revoke(leases ...store.LeaseID) {
	in.Helper()
	if err := in.Revoke(in.ctx(), leases); err != nil {
		in.Fatalf("Revoke: %v", err)
	}
}

// ask returns a new attempt to get a key under the instance's long lease.
func (in *instance) ask(key string) store.Ask {
	return in.askUnder(in.lease, key)
}

func (in *instance) askUnder(lease store.LeaseID, key string) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
}

// askTTL returns a new attempt to get a key as a bind:ttl lock.
func (in *instance) askTTL(key string, ttl time.Duration) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, TTL: ttl}
}

func (in *instance) acquire(ask store.Ask) store.Answer {
	in.Helper()
	answers, err := in.Acquire(in.ctx(), []store.Ask{ask})
	return in.only(answers, err)
}

func (in *instance) enqueue(ask store.Ask) store.Answer {
	in.Helper()
	answers, err := in.Enqueue(in.ctx(), []store.Ask{ask})
	return in.only(answers, err)
}

func (in *instance) check(ask store.Ask) store.Answer {
	in.Helper()
	answers, err := in.Check(in.ctx(), []store.Attempt{ask.Attempt})
	return in.only(answers, err)
}

func (in *instance) cancel(ask store.Ask) store.Answer {
	in.Helper()
	answers, err := in.Cancel(in.ctx(), []store.Attempt{ask.Attempt})
	return in.only(answers, err)
}

func (in *instance) withdraw(ask store.Ask) {
	in.Helper()
	outcomes, err := in.Withdraw(in.ctx(), []store.Attempt{ask.Attempt})
	if err != nil || len(outcomes) != 1 || outcomes[0] != store.Gone {
		in.Fatalf("Withdraw: %v, %v", outcomes, err)
	}
}

func (in *instance) only(answers []store.Answer, err error) store.Answer {
	in.Helper()
	if err != nil {
		in.Fatalf("the store failed: %v", err)
	}
	if len(answers) != 1 {
		in.Fatalf("one item, %d answers: %+v", len(answers), answers)
	}
	return answers[0]
}

// granted acquires a key that must be free.
func (in *instance) granted(ask store.Ask) store.Answer {
	in.Helper()
	return in.want(in.acquire(ask), store.Granted)
}

// queued enqueues an ask for a held key, and checks its position. A repeat checks the position
// again; no other operation returns that of a waiter.
func (in *instance) queued(ask store.Ask, position int) store.Answer {
	in.Helper()
	a := in.want(in.enqueue(ask), store.Queued)
	if a.Position != position {
		in.Fatalf("queue position %d, want %d", a.Position, position)
	}
	return a
}

// want checks an outcome, and the members that belong to this outcome.
func (in *instance) want(a store.Answer, outcome store.Outcome) store.Answer {
	in.Helper()
	if a.Outcome != outcome {
		in.Fatalf("outcome %s, want %s: %+v", name(a.Outcome), name(outcome), a)
	}
	if outcome == store.Granted && (a.Token <= 0 || a.Token >= 1<<53 || a.AcquiredAt.IsZero() || a.ExpiresIn <= 0) {
		in.Fatalf("a grant without a valid token, time or remaining time: %+v", a)
	}
	return a
}

func name(o store.Outcome) string {
	names := map[store.Outcome]string{
		store.Held: "Held", store.Granted: "Granted", store.Queued: "Queued",
		store.Gone: "Gone", store.LeaseLost: "LeaseLost", store.RowLocked: "RowLocked", store.Skipped: "Skipped", store.Quiet: "Quiet",
		store.LimitMismatch: "LimitMismatch",
	}
	if n, ok := names[o]; ok {
		return n
	}
	return "none"
}

// awaitNews waits until the instance is notified of a grant. If the store sends no news of other
// instances, awaitNews polls.
func (in *instance) awaitNews(ask store.Ask) store.Answer {
	in.Helper()
	if in.Traits().Polls {
		return in.awaitGrant(ask)
	}
	late := time.After(patience)
	for {
		select {
		case n := <-in.newsOf(ask.ID):
			if n.ID != ask.ID || n.Key != "" && (n.Key != ask.Key || n.Lease != ask.Lease) {
				in.Fatalf("news of another attempt: %+v, want %+v", n, ask)
			}
			return in.want(n.Answer, store.Granted)
		case <-in.hintsOf(ask.ID):
			if found := in.check(ask); found.Outcome == store.Granted {
				return in.want(found, store.Granted)
			}
		case <-late:
			in.Fatalf("no news of %q", ask.Key)
		}
	}
}

// awaitAnyNews waits for the outcome of a waiter or for a hint to check it.
func (in *instance) awaitAnyNews(ask store.Ask) {
	in.Helper()
	select {
	case <-in.newsOf(ask.ID):
	case <-in.hintsOf(ask.ID):
	case <-time.After(patience):
		in.Fatalf("no news of %q", ask.Key)
	}
}

// awaitGrant polls a waiter until it is granted.
func (in *instance) awaitGrant(ask store.Ask) (granted store.Answer) {
	in.Helper()
	in.poll("a grant of "+ask.Key, func() bool {
		granted = in.check(ask)
		if granted.Outcome != store.Granted && granted.Outcome != store.Queued {
			in.Fatalf("the waiter's outcome is %s", name(granted.Outcome))
		}
		return granted.Outcome == store.Granted
	})
	return in.want(granted, store.Granted)
}

// awaitExpiry waits until the store refuses to renew a lease. It asks only after the TTL, because
// asking renews.
func (in *instance) awaitExpiry(lease store.LeaseID, ttl time.Duration) {
	in.Helper()
	<-time.After(ttl + pause)
	if alive := in.renew(lease); len(alive) != 0 {
		in.Fatalf("a lease with a TTL of %v was renewed after its end", ttl)
	}
}

// claim is the claim of a grant's holder.
func claim(ask store.Ask, token int64) store.Claim {
	c := store.Claim{Key: ask.Key, Token: token}
	if ask.TTL == 0 {
		c.Lease = ask.Lease
	}
	return c
}

func (in *instance) release(c store.Claim) store.Verdict {
	in.Helper()
	verdicts, err := in.Release(in.ctx(), []store.Claim{c})
	if err != nil {
		in.Fatalf("the store failed: %v", err)
	}
	if len(verdicts) != 1 {
		in.Fatalf("one item, %d verdicts: %+v", len(verdicts), verdicts)
	}
	return verdicts[0]
}

// amended amends the claimed lock, with an answer of this status.
func (in *instance) amended(c store.Claim, change store.Change, want store.ClaimStatus) store.Amended {
	in.Helper()
	change.Key, change.Token, change.Lease = c.Key, c.Token, c.Lease
	amended, err := in.Amend(in.ctx(), []store.Change{change})
	return in.wantAmended(amended, err, want)
}

// downgraded amends the claimed lock and makes it a share, with an answer of this status.
func (in *instance) downgraded(c store.Claim, change store.Change, want store.ClaimStatus) store.Amended {
	in.Helper()
	change.Key, change.Token, change.Lease = c.Key, c.Token, c.Lease
	amended, err := in.Downgrade(in.ctx(), []store.Change{change})
	return in.wantAmended(amended, err, want)
}

// adopted makes the last served waiter the holder of a lock that has its token.
func (in *instance) adopted(a store.Adoption) store.Amended {
	in.Helper()
	amended, err := in.Adopt(in.ctx(), []store.Adoption{a})
	return in.wantAmended(amended, err, store.Holds)
}

func (in *instance) wantAmended(amended []store.Amended, err error, want store.ClaimStatus) store.Amended {
	in.Helper()
	if err != nil {
		in.Fatalf("the store failed: %v", err)
	}
	if len(amended) != 1 || amended[0].Status != want {
		in.Fatalf("want one answer, %s: %+v", standing(want), amended)
	}
	return amended[0]
}

// released releases a lock that is held under the claim.
func (in *instance) released(c store.Claim) store.Verdict {
	in.Helper()
	return in.stands(in.release(c), store.Holds)
}

// stands checks the status of a claim.
func (in *instance) stands(v store.Verdict, want store.ClaimStatus) store.Verdict {
	in.Helper()
	if v.Status != want {
		in.Fatalf("claim status %s, want %s: %+v", standing(v.Status), standing(want), v)
	}
	return v
}

func standing(s store.ClaimStatus) string {
	names := map[store.ClaimStatus]string{
		store.Holds: "Holds", store.OtherSession: "OtherSession", store.Released: "Released",
		store.Expired: "Expired", store.UnknownToken: "UnknownToken",
		store.IsShare: "IsShare", store.ClaimRowLocked: "ClaimRowLocked",
	}
	if n, ok := names[s]; ok {
		return n
	}
	return "none"
}

// get reads one lock.
func (in *instance) get(key string) store.Lock {
	in.Helper()
	locks, err := in.Get(in.ctx(), []string{key})
	if err != nil {
		in.Fatalf("Get: %v", err)
	}
	if len(locks) != 1 || locks[0].Key != key {
		in.Fatalf("Get(%q) = %+v", key, locks)
	}
	return locks[0]
}

// holds checks under which token a key is held, and how many wait for it.
func (in *instance) holds(key string, token int64, waiting int) store.Lock {
	in.Helper()
	l := in.get(key)
	if !l.Held || l.Token != token || l.QueueLength != waiting {
		in.Fatalf("held %v under %d with %d waiting, want held under %d with %d waiting",
			l.Held, l.Token, l.QueueLength, token, waiting)
	}
	return l
}

// awaitWaiting waits until a held key has this many waiters. After a reap the sweep of a test beside this one may be
// about to delete the waiters of the dead lease. Then the reap leaves them to that sweep.
func (in *instance) awaitWaiting(key string, token int64, waiting int) {
	in.Helper()
	in.poll(fmt.Sprintf("%d waiters of %s", waiting, key), func() bool { return in.get(key).QueueLength == waiting })
	in.holds(key, token, waiting)
}

// free checks that a key has neither a holder nor waiters.
func (in *instance) free(key string) {
	in.Helper()
	if l := in.get(key); l.Held || l.QueueLength != 0 {
		in.Fatalf("%q is not free: %+v", key, l)
	}
}

// shortHold acquires a key under a fresh lease that will expire soon, and returns while the key is
// held. If the machine was too slow, shortHold tries again with another lease.
func (in *instance) shortHold(key string) (store.Ask, store.Answer) {
	in.Helper()
	var ask store.Ask
	var a store.Answer
	in.poll("a grant under a short lease", func() bool {
		ask = in.askUnder(in.openLease(shortTTL), key)
		a = in.acquire(ask)
		return a.Outcome == store.Granted
	})
	return ask, a
}
