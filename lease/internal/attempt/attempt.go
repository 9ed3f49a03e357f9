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

	// inFlight counts operations that may still change the store: the attempt until it is over, then its cleanups.
	inFlight sync.WaitGroup
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
		came.Leave()
		return nil, err
	}
	b := &Attempt{
		aq: c.aq, s: c.S, slot: &c.Slot, req: c.req, arrival: came, began: c.began, shared: c.shared, tr: c.tr,
	}
	b.under.Store(l)
	b.inFlight.Add(1)
	if c.req.SharesGrant() {
		b.id = repeat.AttemptID(c.req.RequestID, c.req.Key)
	} else {
		b.id = uuid.New()
	}
	if c.attempts == nil {
		c.attempts = c.one[:0]
	}
	c.attempts = append(c.attempts, b)
	return b, nil
}

// Lease is the lease under which the attempt waits, or asks for a session's lock.
func (b *Attempt) Lease() *heartbeat.Lease { return b.under.Load() }

// Key is the key that the attempt asks for.
func (b *Attempt) Key() string { return b.req.Key }

// Ref names the attempt to the store.
func (b *Attempt) Ref() store.Attempt { return store.Attempt{Key: b.req.Key, ID: b.id} }

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

func (b *Attempt) firstAsk(now time.Time) store.Ask {
	b.cacheVersion, b.sent = b.aq.heldCache.Version(b.req.Key), now
	return b.ask()
}

func (b *Attempt) askToWait() store.Ask {
	a := b.ask()
	a.Wait = true
	return a
}

// Start asks the store. If the key is known to be held, or another call has asked before, a waiting call is
// queued directly, because the store grants a free key there, too. If the call shares a grant with other calls,
// it asks, because it must find that grant instead of waiting behind it.
func (b *Attempt) Start(ctx context.Context, now time.Time) {
	if b.arrival == nil {
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
	b.seen = &lock
	sent := b.sent
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

func (b *Attempt) onEnqueue(ans store.Answer, err error) {
	if b.decided("enqueue", ans, err) {
		return
	}
	b.aq.extendCohort(&ans)
	b.mu.Lock()
	if b.phase == over { // news came before this answer, or the lease was lost
		b.mu.Unlock()
		b.onLateAnswer()
		return
	}
	b.phase, b.wasQueued = queued, true
	b.note(ans)
	leave, at := b.unwanted || b.timeUp || b.positionLost, b.dueAt()
	b.mu.Unlock()
	if leave {
		b.cancel()
		return
	}
	b.aq.queue.queued(b, ans.Alone, at)
}

// timeIsUp ends the attempt: won if it has been granted, otherwise with errTimeUp.
func (b *Attempt) timeIsUp() {
	b.mu.Lock()
	b.timeUp = true
	b.mu.Unlock()
	b.cancel()
}

// CallerLeft makes the attempt hand back what it has won or still wins.
func (b *Attempt) CallerLeft() {
	b.mu.Lock()
	b.unwanted = true
	won := b.phase == over && b.err == nil
	b.mu.Unlock()
	switch {
	case !won:
		b.cancel()
	default:
		b.HandBackMember(b.result.Token)
	}
}

// leaseGone ends the attempt after the loss of its lease, unless it was moved. The revocation of the lease
// drops the waiter and a session's lock that it may still win. A bind:ttl lock would outlive the lease, so its
// attempt first learns its outcome.
func (b *Attempt) leaseGone(l *heartbeat.Lease) {
	b.mu.Lock()
	if b.Lease() != l || b.phase == over {
		b.mu.Unlock()
		return
	}
	if b.req.Bind == types.BindTTL {
		b.positionLost = true
		b.mu.Unlock()
		b.cancel()
		return
	}
	b.phase, b.err = over, ErrAttemptLost
	b.mu.Unlock()
	if b.keepsKey() {
		b.aq.withdraw(b.tr.Carry(context.Background()), b.Ref(), b.mayGet(), b.beginCleanup())
	}
	b.end()
}

// cancel takes the attempt out of the queue once its position is confirmed, because a cancel that reached the
// store before the enqueue would leave an orphan. An attempt that has not asked for a position yet is over.
func (b *Attempt) cancel() {
	b.mu.Lock()
	if b.phase == arrived {
		b.phase, b.err = over, b.leftLineLocked()
		b.mu.Unlock()
		b.end()
		return
	}
	if b.phase != queued {
		b.mu.Unlock()
		return
	}
	b.phase, b.sent = cancelling, b.aq.clk.Now()
	b.mu.Unlock()
	if err := b.aq.lanes.Cancels.Submit(b.tr.Carry(context.Background()), b.Ref(), b.onCancel); err != nil {
		b.fail(err) // the sidecar stops; the waiter may get the key before the lease is revoked
	}
}

func (b *Attempt) onCancel(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.winDirectly(&ans)
	case ans.Outcome == store.Skipped: // the store has forgotten the waiter
		b.Finish(&types.SkippedError{Key: b.req.Key, Result: ans.Result})
	case ans.Outcome == store.RowLocked:
		b.fail(types.RowLocked("cancel"))
	default:
		b.mu.Lock()
		if ans.Position > 0 {
			b.position = ans.Position
		}
		err := b.leftLineLocked()
		b.mu.Unlock()
		b.Finish(err)
	}
}

// leftLineLocked is the error of an attempt without a queue position. The caller holds b.mu.
func (b *Attempt) leftLineLocked() error {
	if b.timeUp {
		return errTimeUp
	}
	return ErrAttemptLost
}

func (b *Attempt) leaseLost() {
	if b.Lease() != nil {
		b.aq.leases.Lose(b.Lease(), types.LostExpired)
	}
	b.Finish(ErrAttemptLost)
}

// fail ends an attempt whose question was not answered, and withdraws it, because the store may have carried it
// out. If news came first, the attempt has won: close decides both in one step, because otherwise the
// withdrawal could free a delivered lock. A grant that other calls have is not withdrawn either.
func (b *Attempt) fail(err error) {
	was, first := b.close(err)
	if !first {
		return
	}
	if (store.OutcomeUnknown(err) || was == cancelling) && b.shared == 0 {
		b.aq.obs.OutcomeUnknown(b.req.Key, b.req.Traceparent, err)
		b.aq.withdraw(b.tr.Carry(context.Background()), b.Ref(), b.mayGet(), b.beginCleanup())
	}
	b.end()
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
	if !b.takeAndUnlock(ans, since, t, b.cohortOf(ans, t.Now)) {
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
