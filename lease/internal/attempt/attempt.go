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
		if came != nil {
			came.Leave()
		}
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
	if len(ans.Cohort) > 0 {
		b.aq.extendCohort(&ans)
	}
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

// note records the queue state of an answer. The caller holds b.mu.
func (b *Attempt) note(ans store.Answer) {
	lock := ans.Lock
	b.seen = &lock
	if ans.Position > 0 { // some answers lack it
		b.position = ans.Position
	}
	b.tr.See(&lock, ans.Position)
	b.holderExpiry = b.aq.clk.Now().Add(firstEnd(&ans.Lock))
	b.checkAt = b.aq.queue.nextCheck(ans.Lock)
}

// onNews processes a hand-off or a skip.
func (b *Attempt) onNews(ans store.Answer) {
	if ans.Outcome == store.Skipped {
		b.skipped(ans)
		return
	}
	b.win(&ans, time.Time{}, clock.Read(b.aq.clk))
}

// onCheck processes the answer to a check that was sent at the given time.
func (b *Attempt) onCheck(ans store.Answer, sent time.Time) {
	switch ans.Outcome {
	case store.Granted:
		b.winAsOf(&ans, sent)
	case store.Skipped:
		b.skipped(ans)
	case store.Queued:
		b.mu.Lock()
		b.note(ans)
		b.mu.Unlock()
	default:
		b.mu.Lock()
		gone := b.phase == queued
		b.mu.Unlock()
		if gone {
			b.Finish(ErrAttemptLost)
		}
	}
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

// BeginMove reports whether the attempt is queued and may be moved to another lease. EndMove must follow.
func (b *Attempt) BeginMove() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != queued {
		return false
	}
	b.inFlight.Add(1)
	return true
}

// EndMove ends what BeginMove began. A repeat of the request waits for this.
func (b *Attempt) EndMove() { b.inFlight.Done() }

// Moved makes a queued attempt a user of its new lease. It may have won meanwhile.
func (b *Attempt) Moved(to *heartbeat.Lease, lives func() bool, settled func()) {
	b.mu.Lock()
	ended, token, given := b.phase == over, b.result.Token, b.err == nil
	var old *heartbeat.Lease
	if !ended {
		to.Pin()
		old = b.under.Swap(to)
	}
	b.mu.Unlock()
	switch {
	case !ended:
		old.Unpin()
		if to.Lost() {
			b.leaseGone(to)
		}
		settled()
	case token != 0 && b.req.Bind == types.BindTTL: // it has a lease of its own
		settled()
	case token == 0: // it left, or failed
		b.aq.withdrawOnce(context.Background(), b.Ref(), lives, settled)
	default:
		h := b.s.LockOf(b.slot)
		if h != nil && h.Token == token && (h.Moved(to) || h.HandedOn()) { // even if it is being released
			settled()
			return
		}
		c := store.Claim{Key: b.req.Key, Token: token, Lease: to.ID(), AtOnce: !given}
		if h != nil && h.Token == token {
			c.Served = h.Claim().Served
		}
		b.aq.Free(context.Background(), c, lives, settled)
	}
}
