package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/store"
)

// bid is one attempt at one lock under one grant id and one lease, from the
// first question to the store until it is known what became of it. A call makes
// one bid after another until it has the lock or gives up; a bid that the call
// has left goes on alone, and gives back what it still wins. So no grant is lost
// or leaked, whoever stops listening when.
//
//	asking ──held, call waits──▶ arrived ──▶ enqueuing ──▶ queued ──time up──▶ cancelling
//	  │                             │            │            │                    │
//	  └─────────────────────────────┴─ over: won, or not ─────┴────────────────────┘
//
// A bid of a call that is not the first to arrive at its key begins as arrived: see arrivals.
type bid struct {
	m     *Manager
	s     *Session // nil with BindTTL
	place *place   // of the call, in the session
	req   *Request
	lease *renewed // nil for BindTTL that does not wait
	grant store.GrantID
	tr    *callTrace // of the call
	began time.Time  // of the call, for Waited
	sent  time.Time  // of the question that is under way
	wonAt time.Time
	here  bool // the call carries the first question out itself: see batcher.Lane.Do
	// arrival is its place among the calls that came for the key; nil: the call does not wait.
	arrival *arrival
	// since is before the grant, until when its MaxHold is over (zero: none).
	since, until time.Time

	mu    sync.Mutex
	phase phase
	// Why a bid leaves the queue: the call has left, its time is up, or the lease
	// that keeps the place was lost.
	unwanted, timeUp, placeLost bool

	mark     uint64      // of the denial cache
	seen     *store.Lock // who has it, as last heard; nil: nothing was
	position int         // in line, as last heard; 0: not known
	stood    bool        // it has had a place in line

	// When it is checked. hinted: news came that it should be now, which counts
	// even if it does not stand in line yet, or is being checked.
	checkAt, checkedAt time.Time
	holderEnds         time.Time // as last heard
	hinted, checking   bool

	shared int64 // the grant that belongs to other calls, too, or 0
	result Grant
	err    error
	// ended: the bid is over, and has let go of what it kept. done is closed then; it is
	// nil until somebody waits for it.
	ended bool
	done  chan struct{}
	// lined: it may be in the queue's books.
	lined atomic.Bool

	// loose counts what may still change the store on the bid's behalf: the bid
	// itself until it is over, and what is given back or undone after it.
	loose sync.WaitGroup
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
	// errTimeUp ends a bid whose call waited in vain.
	errTimeUp = errors.New("waited in vain")
	// errBidLost ends a bid whose lease or place in line is gone: the call may
	// make another.
	errBidLost = errors.New("the lease or the place in line is gone")
)

func (m *Manager) newBid(c *call, l *renewed) *bid {
	b := &bid{m: m, s: c.s, place: &c.place, req: c.req, lease: l, began: c.began, shared: c.shared, tr: c.tr}
	b.loose.Add(1)
	if l != nil && l.own() {
		l.only.Store(b)
	}
	if c.req.sharesGrant() {
		b.grant = grantFor(c.req.RequestID, c.req.Key)
	} else {
		b.grant = uuid.New()
	}
	return b
}

func (b *bid) attempt() store.Attempt { return store.Attempt{Key: b.req.Key, Grant: b.grant} }

func (b *bid) ask() store.Ask {
	a := store.Ask{
		Attempt: b.attempt(), MinHold: b.req.MinHold, Skip: b.req.Skip, Data: b.req.Data, Traceparent: b.req.Traceparent,
	}
	if b.lease != nil {
		a.Lease = b.lease.id
	}
	if b.req.Bind == BindTTL {
		a.TTL = b.req.TTL
	} else {
		a.Session, a.Owner = b.s.name, b.req.Owner
	}
	return a
}

// start asks the store. A call that waits for a key that is known to be held, or for which
// another call has asked before, goes straight into the queue: the store grants a free key
// there, too. A call that has a grant in common with other calls asks: in the queue it would
// be denied nothing, and must not be taken for one that has nothing yet.
func (b *bid) start(ctx context.Context) { b.startAt(ctx, b.m.clk.Now()) }

// startAt is start for who has just read the clock.
func (b *bid) startAt(ctx context.Context, now time.Time) {
	if b.arrival == nil {
		b.arrival = b.m.arrivals.join(b.req)
	}
	b.mark, b.sent = b.m.denials.mark(b.req.Key), now
	if b.arrival != nil && b.shared == 0 && (b.arrival.behind || b.m.knownHeld(b.req.Key)) {
		b.enqueue(ctx)
		return
	}
	submit := b.m.acquires.Submit
	if b.here {
		_ = ctx.Done() // who waits says so: from then on its connection is watched
		submit = b.m.acquires.Do
	}
	if err := submit(ctx, b.ask(), b.onAcquire); err != nil {
		b.finish(err)
	}
}

// enqueue goes into the queue behind all who came before. It does not block.
func (b *bid) enqueue(ctx context.Context) {
	b.mu.Lock()
	b.phase = arrived
	b.shared = 0 // somebody else has the key: what other calls had is over
	left := b.unwanted || b.timeUp
	b.mu.Unlock()
	if left {
		b.cancel()
		return
	}
	b.arrival.decide(ctx, b)
}

// enqueueAll asks the store for places in line, for bids of one key in their order.
func (m *Manager) enqueueAll(all []*arrival) {
	asks := make([]batcher.Submission[store.Ask, store.Answer], 0, len(all))
	bids := make([]*bid, 0, len(all))
	for _, a := range all {
		if b := a.bid; b.beginEnqueue() {
			asks = append(asks, batcher.Submission[store.Ask, store.Answer]{Ctx: b.standInLine(a.ctx), Item: b.ask(), Done: b.onEnqueue})
			bids = append(bids, b)
		}
	}
	if err := m.enqueues.SubmitAll(asks); err != nil {
		for _, b := range bids {
			b.finish(err)
		}
	}
}

// beginEnqueue notes that the bid is about to stand in line. It reports false when it is over.
func (b *bid) beginEnqueue() bool {
	b.mu.Lock()
	if b.phase != arrived {
		b.mu.Unlock()
		return false
	}
	b.phase, b.sent = enqueuing, b.m.clk.Now()
	b.mu.Unlock()
	b.lined.Store(true)
	err := b.m.queue.add(b)
	if err == nil && b.lease.lost.Load() { // whoever lost it may not have seen the bid here
		err = errBidLost
	}
	if err != nil {
		b.finish(err)
	}
	return err == nil
}

// onAcquire hears the answer to the first question.
func (b *bid) onAcquire(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.winDirectly(&ans)
	case ans.Outcome == store.Skipped:
		b.skipped(ans)
	case ans.Outcome == store.LeaseLost:
		b.leaseLost()
	case ans.Outcome == store.Stuck:
		b.fail(stuck("acquire"))
	default:
		b.m.denials.put(ans.Lock, b.mark)
		b.denied(ans.Lock)
	}
}

// denied goes into the queue if the call still wants to wait.
func (b *bid) denied(lock store.Lock) {
	b.mu.Lock()
	b.seen = &lock
	goOn := b.req.Wait != 0 && !b.unwanted && !b.timeUp
	timeUp := b.timeUp
	b.mu.Unlock()
	switch {
	case goOn:
		b.enqueue(b.m.ctx)
	case timeUp:
		b.finish(errTimeUp)
	default:
		b.finish(&HeldError{Lock: lock})
	}
}

// onEnqueue hears whether the bid stands in line.
func (b *bid) onEnqueue(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.winDirectly(&ans)
	case ans.Outcome == store.Skipped:
		b.skipped(ans)
	case ans.Outcome == store.LeaseLost:
		b.leaseLost()
	case ans.Outcome == store.Stuck:
		b.fail(stuck("enqueue"))
	default:
		b.mu.Lock()
		if b.phase == over { // granted by news that overtook this answer
			b.mu.Unlock()
			return
		}
		b.phase, b.stood = queued, true
		b.note(ans)
		leave, at := b.unwanted || b.timeUp || b.placeLost, b.dueAt()
		b.mu.Unlock()
		if leave {
			b.cancel()
			return
		}
		b.m.queue.changed(at)
	}
}

// timeIsUp makes the bid end: won if it has been granted, else with errTimeUp.
func (b *bid) timeIsUp() {
	b.mu.Lock()
	b.timeUp = true
	b.mu.Unlock()
	b.cancel()
}

// abandon leaves the bid alone: nobody will hear its outcome. What it has won or
// still wins is given back.
func (b *bid) abandon() {
	b.mu.Lock()
	b.unwanted = true
	won := b.phase == over && b.err == nil
	b.mu.Unlock()
	switch {
	case !won:
		b.cancel()
	default:
		b.givePartBack(b.result.Token)
	}
}

// leaseGone hears that the lease under the bid was lost. The lease's burial drops
// the waiter, and with it a session's lock that it may still win. A bind:ttl lock
// would outlive the lease: such a bid learns what became of it first.
func (b *bid) leaseGone() {
	if b.req.Bind == BindSession {
		if _, first := b.close(errBidLost); first {
			if b.lease.own() { // what it may have won would stand for its MinHold
				b.m.undo(b.tr.carry(context.Background()), b.attempt(), b.mayGet(), b.loosen())
			}
			b.end()
		}
		return
	}
	b.mu.Lock()
	b.placeLost = true
	b.mu.Unlock()
	b.cancel()
}

// cancel takes the bid out of the queue, once its place there is confirmed: a cancel that
// overtook the enqueue would leave an orphan. A bid that has asked for no place yet is over.
func (b *bid) cancel() {
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
	b.phase, b.sent = cancelling, b.m.clk.Now()
	b.mu.Unlock()
	if err := b.m.cancels.Submit(b.tr.carry(context.Background()), b.attempt(), b.onCancel); err != nil {
		b.fail(err) // the sidecar stops: its place may get the key before the lease is buried
	}
}

func (b *bid) onCancel(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.winDirectly(&ans)
	case ans.Outcome == store.Skipped: // and forgotten by the store
		b.finish(&SkippedError{Key: b.req.Key, Result: ans.Result})
	case ans.Outcome == store.Stuck:
		b.fail(stuck("cancel"))
	default:
		b.mu.Lock()
		if ans.Position > 0 {
			b.position = ans.Position
		}
		err := b.leftLineLocked()
		b.mu.Unlock()
		b.finish(err)
	}
}

// leftLineLocked is why a bid is over that has no place in line. b.mu is held.
func (b *bid) leftLineLocked() error {
	if b.timeUp {
		return errTimeUp
	}
	return errBidLost
}

// leaseLost hears from the store that the lease under the bid is dead.
func (b *bid) leaseLost() {
	if b.lease != nil {
		b.m.lose(b.lease, LostExpired)
	}
	b.finish(errBidLost)
}

// fail ends a bid whose question was not answered. What the store may have done
// all the same is undone, unless news came first and the bid has won: both are
// decided in one step, or the undo would free a lock that was told as held. What
// other calls have is not undone, either.
func (b *bid) fail(err error) {
	was, first := b.close(err)
	if !first {
		return
	}
	if (store.OutcomeUnknown(err) || was == cancelling) && b.shared == 0 {
		b.m.logOf(b.req.Traceparent).Warn("the outcome of an acquire is unknown, undoing it", "key", b.req.Key, "error", err)
		b.m.undo(b.tr.carry(context.Background()), b.attempt(), b.mayGet(), b.loosen())
	}
	b.end()
}

// winDirectly takes a lock that was granted by the question under way. Its time
// runs, to be safe, since the question was sent.
func (b *bid) winDirectly(ans *store.Answer) {
	b.mu.Lock()
	sent := b.sent
	b.mu.Unlock()
	b.winAsOf(ans, sent)
}

// winAsOf takes a lock of which an answer told to a question of that time.
func (b *bid) winAsOf(ans *store.Answer, sent time.Time) {
	now := b.m.clk.Now()
	ans.ExpiresIn -= now.Sub(sent)
	b.win(ans, sent, now)
}

// win takes the lock for the session, or gives it back if nobody wants it. since is a time
// before the grant, zero if none is known; now is when the answer was heard.
func (b *bid) win(ans *store.Answer, since, now time.Time) {
	b.mu.Lock()
	if b.phase == over {
		b.mu.Unlock()
		return
	}
	b.since = since
	// What the first question finds is not handed over: it may have been, long ago, to an
	// earlier call of a request that is repeated.
	handedOver := b.stood || b.since.IsZero() || b.phase != asking && ans.HandedBy != ""
	b.phase = over
	wanted := !b.unwanted
	b.result, b.wonAt = b.grantOf(ans, now), now
	kept, before := wanted, (*heldLock)(nil)
	if wanted {
		before, kept = b.keep(ans, now)
	}
	if !kept {
		b.err = b.notKept()
	}
	b.mu.Unlock()
	if kept {
		b.wonLock(handedOver, ans.HandedBy, ans.GrantedFor)
	}
	if before != nil {
		before.s.loseLock(before, LostExpired)
	}
	b.m.denials.drop(b.req.Key)
	b.m.sweeping.granted(now, max(b.req.TTL, b.req.MinHold))
	switch {
	case !kept:
		b.giveBack(ans.Token)
	case b.req.Bind == BindSession:
		b.m.ear.listen() // for signals
		b.m.signals.placed()
	}
	b.end()
}

// notKept is why a call does not get what its bid has won. Another bid of a
// repeatable request would be under the same grant, which is being given back.
func (b *bid) notKept() error {
	if b.req.Bind == BindTTL || past(b.until, b.m.clk.Now()) {
		return &store.Error{Op: "acquire", Err: errors.New("the grant was over when the store's answer came")}
	}
	return errBidLost
}

// keep makes the granted lock the session's. It reports false when the session
// has ended meanwhile, or the lease: such a grant must not be told. It returns
// who held the key here until now, which has evidently lost it. b.mu is held.
func (b *bid) keep(ans *store.Answer, now time.Time) (before *heldLock, ok bool) {
	if b.req.Bind == BindTTL {
		return nil, b.result.ExpiresIn > 0
	}
	if b.req.MaxHold > 0 {
		if b.since.IsZero() { // by a hand-off, of which news came
			b.since = now
		}
		b.until = b.since.Add(b.req.MaxHold)
	}
	h := &heldLock{
		key: b.req.Key, token: ans.Token, s: b.s, lease: b.lease, acquiredAt: ans.AcquiredAt.UnixNano(), since: now.Sub(b.m.began),
		traceparent: b.req.Traceparent, terms: termsOf(b), changes: changesOf(b), request: b.req.RequestID,
	}
	if !h.validAt(b.m.clk, now) {
		return nil, false
	}
	b.lease.riders.Add(1) // the bid's own pin keeps the lease in the book meanwhile
	if before, ok = b.s.keep(h, b.place); !ok {
		b.lease.unpin()
	}
	return before, ok // whoever loses the lease now may not see h: tell does
}

func (b *bid) grantOf(ans *store.Answer, now time.Time) Grant {
	g := Grant{
		Key: b.req.Key, Token: ans.Token, Bind: b.req.Bind, ExpiresIn: ans.ExpiresIn,
		Waited: now.Sub(b.began), AcquiredAt: ans.AcquiredAt,
	}
	g.Reentry, g.entry = 1, 1
	if b.req.Bind == BindSession {
		g.Session = b.s.name
	} else {
		g.ExpiresIn = reliable(ans.ExpiresIn)
	}
	return g
}
