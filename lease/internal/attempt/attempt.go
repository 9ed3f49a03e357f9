package attempt

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Attempt is one attempt to get one lock under one attempt id and one lease, from the first question to the
// store until its outcome is known. If its call leaves, the attempt continues alone, and hands back what it
// still wins. So a grant is never lost or leaked.
//
//	asking ──held, call waits──▶ arrived ──▶ enqueuing ──▶ queued ──time up──▶ cancelling
//	  │                             │            │            │                    │
//	  └─────────────────────────────┴─ over: won, or not ─────┴────────────────────┘
//
// If its call is not the first to arrive for its key, an attempt begins in the state arrived: see arrivals.
type Attempt struct {
	aq          *Acquirer
	s           *holdings.Session // nil with BindTTL
	slot        *holdings.Slot    // of the call, in the session
	req         *types.Request
	under       atomic.Pointer[heartbeat.Lease] // nil for a BindTTL attempt that does not wait; changed under mu
	id          store.AttemptID
	tr          *observe.Call // of the call
	began       time.Time     // of the call, for Waited
	sent        time.Time     // when the running question was sent
	wonAt       time.Time
	runInCaller bool // the call's goroutine runs the first question: see batcher.Lane.Do
	// arrival is nil if the call does not wait.
	arrival *Arrival
	// since is a time before the grant. until is the end of its MaxHold (zero: none).
	since, until time.Time

	mu    sync.Mutex
	phase phase
	// The reasons why an attempt leaves the queue: the call has left, its time is up, or its lease was lost.
	unwanted, timeUp, positionLost bool

	cacheVersion uint64      // of the held cache
	seen         *store.Lock // the holder by the last answer; nil: unknown
	seenAt       time.Time   // when the question of that answer was sent
	position     int         // the queue position by the last answer; 0: unknown
	wasQueued    bool

	// The times of checks. hinted: the attempt should be checked now. It may be set before the attempt is queued,
	// or during a check.
	checkAt, checkedAt time.Time
	holderExpiry       time.Time // by the last answer
	hinted, checking   bool

	shared int64 // the grant that other calls also have, or 0
	result types.Grant
	err    error
	// ended: the attempt is over and has ended its use of lease and queue. done is then closed; it is nil until a
	// caller waits.
	ended bool
	done  chan struct{}
	// inQueue: the attempt may be in the queue.
	inQueue atomic.Bool
	// inStore: the store has queued the attempt. The mutex of the queue guards this.
	inStore bool

	inFlight *sync.WaitGroup // of the call
}

type phase uint8

const (
	asking phase = iota
	arrived
	enqueuing
	queued
	cancelling
	over
)

var (
	// errTimeUp ends an attempt whose call's wait is over.
	errTimeUp = errors.New("waited in vain")
	// ErrAttemptLost ends an attempt whose lease or queue position is lost. The call may try again.
	ErrAttemptLost = errors.New("the lease or the place in line is gone")
)

// NewAttempt makes the next attempt of a call, which arrived as came. It fails without a lease.
func (c *Call) NewAttempt(came *Arrival) (*Attempt, error) {
	l, err := c.lease()
	if err != nil {
		if came != nil {
			came.Leave()
		}
		return nil, err
	}
	b := &Attempt{
		aq: c.aq, s: c.S, slot: &c.Slot, req: c.req, arrival: came, began: c.began, shared: c.shared, tr: c.tr, inFlight: &c.inFlight,
	}
	b.under.Store(l)
	b.inFlight.Add(1)
	if SharesGrant(c.req) {
		b.id = repeat.AttemptID(c.req.RequestID, c.req.Key)
	} else {
		b.id = uuid.New()
	}
	c.attempts++
	return b, nil
}

// SharesGrant reports whether repeats of the request have the same attempt id at all sidecars. Repeats in a
// session do not need this, because the session knows its locks.
func SharesGrant(r *types.Request) bool { return r.Bind == types.BindTTL && r.RequestID != uuid.Nil }

// Lease is the lease under which the attempt waits, or asks for a session's lock.
func (b *Attempt) Lease() *heartbeat.Lease { return b.under.Load() }

// Key is the key that the attempt asks for.
func (b *Attempt) Key() string { return b.req.Key }

// Ref names the attempt to the store.
func (b *Attempt) Ref() store.Attempt { return store.Attempt{Key: b.req.Key, ID: b.id} }

// Start asks the store. If the key is known to be held, or another call has asked before, a waiting call is
// queued directly, because the store grants a free key there, too. If the call shares a grant with other calls,
// it asks, because it must find that grant instead of waiting behind it.
func (b *Attempt) Start(ctx context.Context, now time.Time) {
	if b.arrival == nil && b.req.Wait != 0 {
		b.arrival = b.aq.arrivals.join(b.req)
	}
	ask := b.firstAsk(now)
	if b.aq.isLate(b.arrival, b.shared) {
		b.enqueue(ctx)
		return
	}
	submit := b.aq.lanes.Acquires.Submit
	if b.runInCaller {
		submit = b.aq.lanes.Acquires.Do
	}
	if err := submit(ctx, ask, b.onAcquire); err != nil {
		b.Finish(err)
	}
}

// isLate reports whether a waiting attempt can skip asking for its key, because other calls came before, or the
// key is known to be held. An attempt that shares its grant with other calls must ask. a may be nil.
func (aq *Acquirer) isLate(a *Arrival, shared int64) bool {
	return a != nil && shared == 0 && (a.behind || aq.knownHeld(a.key))
}

// knownHeld reports whether a session here holds the key, or a call here waits for it.
func (aq *Acquirer) knownHeld(key string) bool {
	h := aq.holdings.Get(key)
	return h != nil && h.Valid(clock.Read(aq.clk)) || aq.QueueLength(key) > 0
}

func (b *Attempt) firstAsk(now time.Time) store.Ask {
	b.cacheVersion, b.sent = b.aq.heldCache.Version(b.req.Key), now
	return b.ask()
}

func (b *Attempt) ask() store.Ask {
	a := store.Ask{
		Attempt: b.Ref(), MinHold: b.req.MinHold, Skip: b.req.Skip, Shared: b.req.Shared, Limit: b.req.Limit,
		Data: b.req.Data, Traceparent: b.req.Traceparent,
	}
	if b.Lease() != nil {
		a.Lease = b.Lease().ID()
	}
	if b.req.Bind == types.BindTTL {
		a.TTL = b.req.TTL
	} else {
		a.Session, a.Owner = b.s.Name(), b.req.Owner
	}
	return a
}

func (b *Attempt) onAcquire(ans store.Answer, err error) {
	if b.decided("acquire", ans, err) {
		return
	}
	if ans.Outcome == store.Quiet {
		b.denied(types.Quiet(ans.ExpiresIn))
		return
	}
	lock := ans.Lock // a copy: otherwise each answer would be on the heap, also those that grant
	b.mu.Lock()
	sent := b.sent
	b.seen, b.seenAt = &lock, sent
	b.mu.Unlock()
	b.aq.heldCache.Put(lock, b.cacheVersion, sent)
	b.denied(&types.HeldError{Lock: lock})
}

// decided ends the attempt, unless the answer means that the key is held.
func (b *Attempt) decided(op string, ans store.Answer, err error) bool {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.winDirectly(&ans)
	case ans.Outcome == store.Skipped:
		b.skipped(ans)
	case ans.Outcome == store.LeaseLost:
		b.leaseLost()
	case ans.Outcome == store.RowLocked:
		b.fail(types.RowLocked(op))
	case ans.Outcome == store.LimitMismatch:
		b.Finish(&types.LimitMismatchError{Key: b.req.Key, Limit: ans.Lock.Limit, Given: b.req.Limit})
	case ans.Outcome == store.QueueFull:
		b.Finish(&types.LimitError{What: "waiters of this key", Limit: b.aq.longestQueue})
	default:
		return false
	}
	return true
}

// denied queues a call that waits. Otherwise it ends the attempt.
func (b *Attempt) denied(why error) {
	b.mu.Lock()
	goOn := b.req.Wait != 0 && !b.unwanted && !b.timeUp
	timeUp := b.timeUp
	b.mu.Unlock()
	switch {
	case goOn:
		b.enqueue(b.aq.ctx)
	case timeUp:
		b.Finish(errTimeUp)
	default:
		b.Finish(why)
	}
}

// winDirectly takes a lock granted by the running question. Its time counts from the question, to be safe.
func (b *Attempt) winDirectly(ans *store.Answer) {
	b.mu.Lock()
	sent := b.sent
	b.mu.Unlock()
	b.winAsOf(ans, sent)
}

// winAsOf takes a lock from the answer to a question that was sent at the given time.
func (b *Attempt) winAsOf(ans *store.Answer, sent time.Time) {
	t := clock.Read(b.aq.clk)
	ans.ExpiresIn -= t.Now.Sub(sent)
	b.win(ans, sent, t)
}

// win takes the lock for the session, or hands it back if it is unwanted. since is before the grant, or zero.
func (b *Attempt) win(ans *store.Answer, since time.Time, t clock.Tick) {
	b.mu.Lock()
	if b.phase == over {
		b.mu.Unlock()
		b.onLateAnswer()
		return
	}
	var cohort *holdings.Cohort
	if b.inQueue.Load() && !b.req.Shared { // otherwise hardly any others wait
		cohort = holdings.NewCohort(ans, t.Now)
	}
	if !b.takeAndUnlock(ans, since, t, cohort) {
		b.handBack(ans.Token)
	}
	b.end()
}

// takeAndUnlock makes the grant the call's, and reports whether the call has it. The caller holds b.mu, which
// is unlocked here.
func (b *Attempt) takeAndUnlock(ans *store.Answer, since time.Time, t clock.Tick, cohort *holdings.Cohort) (kept bool) {
	now := t.Now
	b.since = since
	// A grant found by the first question is not a hand-off, because a repeated request may find an old grant.
	handedOver := b.wasQueued || b.since.IsZero() || b.phase != asking && ans.HandedBy != ""
	b.phase = over
	wanted := !b.unwanted
	b.result, b.wonAt = b.grantOf(ans, now), now
	var before []*holdings.Lock
	if kept = wanted; wanted {
		before, kept = b.join(ans, t, cohort)
	}
	if !kept {
		b.err = b.whyNotKept()
	}
	b.mu.Unlock()
	switch {
	case kept && handedOver:
		b.aq.obs.HandedOver(b.tr, ans.HandedBy, ans.GrantedFor)
	case kept:
		b.tr.FoundFree()
	}
	for _, h := range before {
		h.Lose(types.LostExpired)
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.aq.granted(now, b.lasts(), kept && b.req.Bind == types.BindSession)
	return kept
}

// whyNotKept returns why a call does not get the grant of its attempt. Another attempt of a repeatable request
// would find the same grant, which is being handed back.
func (b *Attempt) whyNotKept() error {
	if b.req.Bind == types.BindTTL || clock.Past(b.until, b.aq.clk.Now()) {
		return &store.Error{Op: "acquire", Err: errors.New("the grant was over when the store's answer came")}
	}
	return ErrAttemptLost
}

// join makes the granted lock the session's. It returns false if the session or the lease has ended, because
// such a grant must not be delivered. before are the key's lost locks here. The caller holds b.mu.
func (b *Attempt) join(ans *store.Answer, t clock.Tick, cohort *holdings.Cohort) (before []*holdings.Lock, ok bool) {
	if b.req.Bind == types.BindTTL {
		return nil, b.result.ExpiresIn > 0
	}
	if b.req.MaxHold > 0 {
		if b.since.IsZero() { // the grant came by news of a hand-off
			b.since = t.Now
		}
		b.until = b.since.Add(b.req.MaxHold)
	}
	b.Lease().Pin() // meanwhile, the attempt's own pin keeps the lease
	w := holdings.Won{
		Req: b.req, Token: ans.Token, Slot: ans.Slot, Lease: b.Lease(), AcquiredAt: ans.AcquiredAt,
		Until: b.until, Span: b.tr.Hold(b.req.Shared), Cohort: cohort,
	}
	if before, ok = b.s.AddMember(w, b.slot, t); !ok {
		b.Lease().Unpin()
	}
	return before, ok // a loss of the lease at this moment may miss this lock, so deliver checks it
}

func (b *Attempt) grantOf(ans *store.Answer, now time.Time) types.Grant {
	g := types.Grant{
		Key: b.req.Key, Token: ans.Token, Bind: b.req.Bind, ExpiresIn: ans.ExpiresIn,
		Waited: now.Sub(b.began), AcquiredAt: ans.AcquiredAt, Shared: b.req.Shared, Limit: b.req.Limit, Slot: ans.Slot,
	}
	g.Reentry, g.Entry = 1, 1
	if b.req.Bind == types.BindSession {
		g.Session = b.s.Name()
	} else {
		g.ExpiresIn = heartbeat.Reliable(ans.ExpiresIn)
	}
	return g
}

// lasts is how long a lock keeps its key after the attempt's lease.
func (b *Attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// Finish ends an attempt that has not won.
func (b *Attempt) Finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close sets the phase to over without a win. It returns the previous phase, and whether that was not over.
func (b *Attempt) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// end ends the attempt's use of its queue position, its arrival and its lease.
func (b *Attempt) end() {
	if b.inQueue.Load() {
		b.aq.queue.remove(b)
	}
	if b.arrival != nil {
		b.arrival.Leave()
	}
	if b.Lease() != nil {
		b.Lease().Unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.inFlight.Done()
}

// IsOver reports whether an attempt is over and has ended.
func (b *Attempt) IsOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Ends is closed when IsOver is true.
func (b *Attempt) Ends() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = make(chan struct{})
		if b.ended {
			close(b.done)
		}
	}
	return b.done
}
