package attempt

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Call contains what the attempts of one Acquire have in common. Only the goroutine of the call uses it, except inFlight.
type Call struct {
	aq        *Acquirer
	ctx       context.Context
	S         *holdings.Session // nil with BindTTL
	req       *types.Request
	began     time.Time
	tick      clock.Tick         // when the lease was found alive; the clock was not read since
	Admission holdings.Admission // in the session
	ofGroup   bool               // it belongs to a group
	mayEnter  <-chan struct{}    // receives when the call should try to enter; nil: it never enters
	attempts  int                // their number
	// inFlight counts operations that may still change the store: attempts until they are over, then their cleanups.
	inFlight sync.WaitGroup
	tr       *observe.Trace
	// repeated is the grant that other calls of the request have, or 0.
	repeated int64
	// withdrawn is closed when a release by the request id ends the call; nil without an id.
	withdrawn <-chan struct{}

	// seen is the last known lock (nil: unknown), by an answer to a question sent at seenAt. position is the call's queue position.
	seen     *store.Lock
	seenAt   time.Time
	position int
	// WasQueued: the call has had a queue position. After that, it waits through an outage.
	WasQueued bool
	behind    bool // its last attempt does not ask, because other calls of the sidecar came before: see queuesAtOnce
	rest      time.Duration
	// onlyRecalls: the call does not wait. It is queued for a moment, so that another sidecar learns of it: see RecallOnce.
	onlyRecalls bool

	// limit is until when the call waits: see wait.go.
	limit limit
}

// Acquire gets a lock for a session, or a BindTTL lock: see Acquire of package lease. It makes the call, and calls with one request id take turns.
func (aq *Acquirer) Acquire(ctx context.Context, s *holdings.Session, req *types.Request) (types.Grant, error) {
	if aq.IsDraining() {
		return types.Grant{}, types.ErrDraining
	}
	req.TTL = aq.TTLOf(s, req)
	if req.Bind == types.BindTTL {
		s = nil
	}
	c := aq.NewCall(ctx, s, req)
	if req.RequestID == uuid.Nil {
		return c.Run()
	}
	return aq.acquireInTurn(c)
}

// NewCall makes a call that asks for one lock. s is nil with BindTTL.
func (aq *Acquirer) NewCall(ctx context.Context, s *holdings.Session, req *types.Request) *Call {
	return &Call{aq: aq, ctx: ctx, S: s, req: req}
}

// Run tells how a call gets its lock:
//
//  1. It may get or be refused the lock without the store: its owner has it, or the key was seen held a moment ago.
//  2. It makes attempts until one wins, or until it gives up: tryUntilDecided. What may pass leads to another attempt: retry.go.
//  3. Each attempt takes its place behind earlier calls for the key (arrivals.go), and gets an open lease: try, lease.
//  4. If this sidecar keeps the key, the attempt takes it: takeKept. Otherwise it asks the store: Start (ask.go). A lane makes one statement of many
//     asks (package batcher).
//  5. The answer comes to onAcquire (ask.go): the attempt wins (win.go), waits (enqueue.go), or has failed (fail in end.go).
//  6. Meanwhile the call waits for the end of the attempt: Await. The lock that was won is the app's when the call returns: deliver. If the call must end
//     before, it leaves the attempt, which hands back what it still wins.
func (c *Call) Run() (types.Grant, error) {
	aq, s, req := c.aq, c.S, c.req
	// If the owner holds the key already, it enters the lock again. The store does not know that.
	if req.Reentrant {
		if g, ok := s.Enter(req); ok {
			aq.obs.Cached(observe.CachedEntry)
			return g, nil
		}
	}
	// A key is kept only while no call for it is present: this one may already have looked for a kept key.
	if aq.keeps != nil {
		aq.keeps.CallCame(req.Key)
		defer aq.keeps.CallLeft(req.Key)
	}
	// The session must have room for one more lock. The call counts until it returns, or until its lock counts itself.
	if s != nil {
		if err := s.Admit(&c.Admission); err != nil {
			return types.Grant{}, err
		}
		defer s.Leave(&c.Admission)
	}
	// A call that does not wait is refused without the store if the key was held a moment ago. A repeat asks, because
	// the grant may be its own.
	if !FixesID(req) {
		if lock, held := aq.HeldInCache(s, req); held {
			return types.Grant{}, &types.HeldError{Lock: lock, Cached: true}
		}
	}
	// The sidecar limits its waiting calls, and warns of those that may wait for themselves.
	if req.Wait != 0 {
		if err := aq.AddWaiter(); err != nil {
			return types.Grant{}, err
		}
		defer aq.WaiterLeft()
		defer c.WarnOfOwnKey()()
	}
	// From here on the store is asked.
	c.tr = aq.obs.Trace(c.ctx, req.Key, req.Shared)
	if c.began.IsZero() && (req.Wait != 0 || req.Reentrant) { // the others begin with their first attempt
		c.began = aq.clk.Now()
	}
	g, err := c.tryUntilDecided()
	c.tr.Leave()
	c.tr.EndWait(ResultOf(&g, err))
	return g, err
}

// tryUntilDecided makes attempts until one wins, or the call gives up.
func (c *Call) tryUntilDecided() (types.Grant, error) {
	defer c.limit.stop()
	// Meanwhile another call of the same owner may get the lock. Then this one enters, and gives its queue position up.
	if c.req.Wait != 0 && c.req.Reentrant {
		e := c.S.ExpectEntry(c.req)
		defer e.Close()
		c.mayEnter = e.Opens()
	}
	for {
		if g, ok := c.enter(); ok {
			return g, nil
		}
		g, err := c.try()
		if err == nil {
			return g, nil
		}
		if c.RecallOnce(err) {
			continue
		}
		// A lost lease, a lost queue position or an outage may pass (retry.go). All else is the call's answer.
		if c.mayEnterSoon(err) {
			err = c.awaitEntry()
		} else {
			err = c.MayGoOn(err)
		}
		if err != nil {
			return types.Grant{}, err
		}
	}
}

// enter enters the lock if the call's owner has got it since the call began.
func (c *Call) enter() (types.Grant, bool) {
	if !c.req.Reentrant {
		return types.Grant{}, false
	}
	waited := c.aq.clk.Now().Sub(c.began) // before the lock's remaining time is read
	g, ok := c.S.Enter(c.req)
	g.Waited = waited
	return g, ok
}

// try tells how one attempt runs.
func (c *Call) try() (types.Grant, error) {
	// A cleanup of the last attempt could still free what this one gets, if both have the same id.
	if err := c.SettleLast(); err != nil {
		return types.Grant{}, err
	}
	// Calls that wait for a key are served in the order in which they came, so the call arrives before the lease, which may
	// take time.
	var came *Arrival
	if c.req.Wait != 0 {
		came = c.aq.arrivals.join(c.req)
	}
	b, err := c.NewAttempt(came)
	if err != nil {
		return types.Grant{}, err
	}
	// If this sidecar keeps the key, the attempt takes it. Otherwise it asks the store, and the answer comes to onAcquire: the attempt wins (win.go),
	// waits (enqueue), or is over. If only that answer can end the call, the call's goroutine runs the statement.
	decided, err := c.takeKept(b)
	if err != nil {
		b.Finish(err)
		return types.Grant{}, err
	}
	if !decided {
		b.runInCaller = !c.aq.inline && !c.mayEndEarly()
		b.Start(c.ctx, c.tick.Now)
	}
	// The call returns when the attempt is over. If the call must end before, it leaves the attempt, which then hands back what it wins.
	return c.Await(b)
}

// SettleLast waits until earlier attempts can no longer change the store. With a request id, the next attempt
// has the same id, and a late hand-back would free its grant.
func (c *Call) SettleLast() error {
	if c.attempts == 0 || !FixesID(c.req) {
		return nil
	}
	return c.Until(c.CleanedUp())
}

// mayEndEarly reports whether the call may have to end before the store answers: when the sidecar drains while
// the call waits, when another connection ends its session, or when the store's time is over because its lease took long to open. Other
// calls end after the store's timeout at the latest, even if the store does not answer during Stop.
func (c *Call) mayEndEarly() bool {
	late := c.tick.Now.Sub(c.began) > types.Patience(c.aq.cfg.StoreTimeout)-c.aq.cfg.StoreTimeout
	return c.req.Wait != 0 || c.S != nil && c.S.Explicit() || late
}

// NewAttempt makes the next attempt of a call, which arrived as came. It fails without a lease.
func (c *Call) NewAttempt(came *Arrival) (*Attempt, error) {
	c.behind = came != nil && came.behind && c.repeated == 0
	l, err := c.lease()
	if err != nil {
		if came != nil {
			came.Leave()
		}
		return nil, err
	}
	b := &Attempt{
		aq: c.aq, s: c.S, admission: &c.Admission, req: c.req, arrival: came, began: c.began, repeated: c.repeated, tr: c.tr, inFlight: &c.inFlight,
		onlyRecalls: c.onlyRecalls,
	}
	b.under.Store(l)
	b.inFlight.Add(1)
	if FixesID(c.req) {
		b.id = repeat.AttemptID(c.req.RequestID, c.req.Key)
	} else {
		b.id = uuid.New()
	}
	c.attempts++
	return b, nil
}

// lease returns an open lease, pinned, or nil for a bind:ttl request that does not wait.
func (c *Call) lease() (*heartbeat.Lease, error) {
	c.tick = clock.Read(c.aq.clk)
	if c.began.IsZero() {
		c.began = c.tick.Now
	}
	ttl := c.req.TTL
	if c.req.Bind == types.BindTTL {
		if c.req.Wait == 0 {
			return nil, nil //nolint:nilnil // it needs no lease
		}
		ttl = c.aq.cfg.TTL // keeps the queue position
	}
	for {
		l := c.aq.leases.Pin(c.ctx, ttl)
		if err := c.opened(l); err != nil {
			l.Unpin()
			return nil, err
		}
		if l.Alive(c.tick) {
			return l, nil
		}
		l.Unpin()
		c.aq.leases.LoseOverdue(l) // it has expired, and the renewer has not noticed yet
		c.tick = clock.Read(c.aq.clk)
	}
}

func (c *Call) opened(l *heartbeat.Lease) error {
	select {
	case <-l.Opened(): // the usual case
		return l.Err()
	default:
	}
	err := c.Until(l.Opened())
	c.tick = clock.Read(c.aq.clk)
	if err != nil {
		return err
	}
	return l.Err()
}

func (c *Call) outcome(b *Attempt) (types.Grant, error) {
	b.mu.Lock()
	g, err := b.result, b.err
	c.learnLocked(b)
	b.mu.Unlock()
	switch {
	case err == nil:
		return c.deliver(b, g)
	case errors.Is(err, errTimeUp):
		return types.Grant{}, c.Timeout()
	case c.aq.ctx.Err() != nil:
		return types.Grant{}, types.ErrDraining // stopped; the attempt's own error does not matter
	default:
		return types.Grant{}, lanes.Refusal(c.ctx, err)
	}
}

// learnLocked copies what an attempt knows. The caller holds b.mu.
func (c *Call) learnLocked(b *Attempt) {
	c.repeated = b.repeated
	if b.seen != nil && b.seen.Key != "" {
		c.seen, c.seenAt = b.seen, b.seenAt
	}
	if b.wasQueued {
		c.WasQueued, c.position = true, b.position
	}
}

// deliver returns what the attempt has won. It hands back a lock that was lost meanwhile.
func (c *Call) deliver(b *Attempt, g types.Grant) (types.Grant, error) {
	var told bool
	switch {
	case g.Bind == types.BindTTL:
		g.ExpiresIn -= c.aq.clk.Now().Sub(b.wonAt)
		told = g.ExpiresIn > 0
	case c.ofGroup:
		told = c.S.HasUndelivered(&c.Admission)
	default:
		told = c.S.Deliver(&c.Admission)
		g.ExpiresIn = c.Admission.ExpiresIn
	}
	if told {
		return g, nil
	}
	b.Cancel() // even if the session has ended, because the lock may have been lost before
	if c.S != nil && c.S.HasEnded() {
		return types.Grant{}, types.ErrSessionEnded
	}
	return types.Grant{}, b.whyHandedBack()
}
