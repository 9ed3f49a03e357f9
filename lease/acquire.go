package lease

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Acquire gets a lock for a session, or with BindTTL for nobody (s is nil or
// ignored then). It returns when the lock is granted, refused, or not to be had
// in the time that the request waits. When ctx ends, the call has left: it returns
// [ErrCallerLeft], and what the store grants all the same is handed back.
//
// Errors: [HeldError], [TimeoutError], [SkippedError], [LimitError],
// [ErrSessionEnded], [ErrDraining], [ErrCallerLeft], [ErrWithdrawn], and those of the store.
func (m *Manager) Acquire(ctx context.Context, s *Session, req types.Request) (types.Grant, error) {
	began := m.begins(&req)
	g, err := m.acquireOne(ctx, s, &req)
	m.acquired(ctx, &req, began, &g, err)
	return g, err
}

func (m *Manager) acquireOne(ctx context.Context, s *Session, req *types.Request) (types.Grant, error) {
	if m.isDraining() {
		return types.Grant{}, types.ErrDraining
	}
	req.TTL = m.ttlOf(s, req)
	if req.Bind == types.BindTTL {
		return m.acquireTTL(ctx, req)
	}
	c := &call{s: s, req: req}
	if req.RequestID != uuid.Nil {
		return m.acquireInTurn(ctx, c)
	}
	return m.acquireIn(ctx, c)
}

// acquireIn gets a lock for the session of a call.
func (m *Manager) acquireIn(ctx context.Context, c *call) (types.Grant, error) {
	s, req := c.s, c.req
	if g, ok := s.enter(req); ok {
		m.obs.Cached(observe.CachedEntry)
		return g, nil
	}
	if err := s.admit(&c.slot); err != nil {
		return types.Grant{}, err
	}
	defer s.leave(&c.slot)
	if lock, ok := m.heldInCache(s, req); ok {
		return types.Grant{}, &types.HeldError{Lock: lock, Cached: true}
	}
	return m.acquire(ctx, c)
}

// ttlOf is the TTL that a request asks for, or the default.
func (m *Manager) ttlOf(s *Session, req *types.Request) time.Duration {
	switch {
	case req.TTL != 0:
		return req.TTL
	case s != nil && req.Bind == types.BindSession:
		return s.TTL()
	default:
		return m.cfg.TTL
	}
}

// acquireTTL gets a bind:ttl lock. Calls with the same request id take turns, so
// that a repeat finds what became of the first.
func (m *Manager) acquireTTL(ctx context.Context, req *types.Request) (types.Grant, error) {
	if req.RequestID == uuid.Nil {
		if lock, ok := m.heldInCache(nil, req); ok {
			return types.Grant{}, &types.HeldError{Lock: lock, Cached: true}
		}
		return m.acquire(ctx, &call{req: req})
	}
	w := repeat.NewWithdrawal()
	c := &call{req: req, began: m.clk.Now(), withdrawn: w.Ended()}
	r := m.requests.Use(repeat.AttemptID(req.RequestID, req.Key), w)
	defer m.requests.Done(r, w)
	if err := m.takeTurn(ctx, nil, r, req.Wait, w); err != nil {
		return types.Grant{}, err
	}
	defer func() { m.leaveAfter(&m.requests, r, c.attempts) }()
	c.shared = r.Shared()
	g, err := m.acquire(ctx, c)
	if err == nil {
		g.Repeats = r
		r.Give(g.Token)
	}
	return g, err
}

// heldInCache answers from what is known here that a key is held: by a session of
// this sidecar, or by somebody else of whom the store told a moment ago. The owner
// that may enter the lock is not denied: it got it in this moment.
func (m *Manager) heldInCache(s *Session, req *types.Request) (store.Lock, bool) {
	if req.Wait != 0 || req.NoCache {
		return store.Lock{}, false
	}
	if h := m.holdings.get(req.Key); h != nil && h.valid(clock.Read(m.clk)) {
		if h.s == s && h.admits(req) {
			return store.Lock{}, false
		}
		m.obs.Cached(observe.CachedHeld)
		return h.lock(), true
	}
	lock, ok := m.heldCache.Get(req.Key)
	if ok {
		m.obs.Cached(observe.CachedDenied)
	}
	return lock, ok
}

// knownHeld reports whether a session of this sidecar holds the key, or a call of it stands
// in line for the key: then it will hardly be free.
func (m *Manager) knownHeld(key string) bool {
	h := m.holdings.get(key)
	return h != nil && h.valid(clock.Read(m.clk)) || m.queue.length(key) > 0
}

// isLate reports whether an attempt that waits need not ask for its key: calls came before, or
// it is known to be held. One with a grant in common with other calls asks. a may be nil.
func (m *Manager) isLate(a *arrival, shared int64) bool {
	return a != nil && shared == 0 && (a.behind || m.knownHeld(a.key))
}

// acquire gets a lock that is not denied here.
func (m *Manager) acquire(ctx context.Context, c *call) (types.Grant, error) {
	if c.req.Wait != 0 {
		if err := m.addWaiter(); err != nil {
			return types.Grant{}, err
		}
		defer m.waiters.Add(-1)
	}
	c.m, c.ctx, c.tr = m, ctx, m.obs.Call(ctx, c.req.Key)
	if c.began.IsZero() && (c.req.Wait != 0 || c.req.Reentrant) { // the others begin with their first attempt
		c.began = m.clk.Now()
	}
	g, err := c.acquire()
	c.tr.Leave()
	c.tr.EndWait(resultOf(&g, err))
	return g, err
}

// addWaiter counts a call in that waits, if there may be one more.
func (m *Manager) addWaiter() error {
	if n := m.waiters.Add(1); n > int64(m.cfg.MaxWaiters) {
		m.waiters.Add(-1)
		return waiterLimit(m.cfg.MaxWaiters)
	}
	return nil
}

func waiterLimit(limit int) error {
	return &LimitError{What: "waiting calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
}

// call is what stays the same over the attempts of one Acquire.
type call struct {
	m        *Manager
	ctx      context.Context
	s        *Session // nil with BindTTL
	req      *types.Request
	began    time.Time
	tick     clock.Tick // when the lease of an attempt was found alive: the clock was not read since
	slot     quotaSlot  // in the session
	ofGroup  bool       // of a group
	entry    *entrance
	attempts []*attempt
	one      [1]*attempt // has them as long as there is one
	tr       *observe.Call
	// shared is the grant that other calls of the same request have, or 0.
	shared int64
	// withdrawn is closed when a release by the request id ends the call; nil without one.
	withdrawn <-chan struct{}

	// seen is the last known state of the lock (nil: unknown), position the call's queue position.
	seen     *store.Lock
	position int
	// stood: the call has had a queue position. From then on an outage is no reason
	// to give up, only to rest between its attempts.
	wasQueued bool
	rest      time.Duration

	timer *time.Timer
	time  <-chan time.Time // fires when the wait is over
	timed bool             // it has fired
}

// acquire makes attempts until one wins or the call gives up.
func (c *call) acquire() (types.Grant, error) {
	defer c.stopTimer()
	c.entry = c.s.expectEntry(c.req)
	defer c.entry.close()
	for {
		if g, ok := c.enter(); ok {
			return g, nil
		}
		g, err := c.try()
		if err == nil {
			return g, nil
		}
		if g, ok := c.enterInstead(err); ok {
			return g, nil
		}
		if err := c.mayGoOn(err); err != nil {
			return types.Grant{}, err
		}
	}
}

// try makes one attempt and returns its outcome.
func (c *call) try() (types.Grant, error) {
	if err := c.settleLast(); err != nil {
		return types.Grant{}, err
	}
	came := c.m.arrivals.join(c.req) // before the lease, for which it may have to wait
	l, err := c.lease()
	if err != nil {
		came.leave()
		return types.Grant{}, err
	}
	b := c.m.newAttempt(c, l)
	b.arrival = came
	if c.attempts == nil {
		c.attempts = c.one[:0]
	}
	c.attempts = append(c.attempts, b)
	b.runInCaller = !c.m.inline && !c.mayEndEarly()
	b.start(c.ctx, c.tick.Now)
	return c.await(b)
}

// mayEndEarly reports whether somebody could want to hear how the call ended before the
// store has answered: it waits, and the sidecar drains; or its session is ended by
// another connection than its own. (Whose own connection closes wants to hear nothing. At
// Stop, while the store hangs, such a call hears of it with the store's timeout.)
func (c *call) mayEndEarly() bool { return c.req.Wait != 0 || c.s != nil && c.s.Explicit() }

// lease returns the lease that an attempt needs, pinned and open, or nil for a bind:ttl
// request that does not wait.
func (c *call) lease() (*lease, error) {
	c.tick = clock.Read(c.m.clk)
	if c.began.IsZero() {
		c.began = c.tick.Now
	}
	ttl := c.req.TTL
	if c.req.Bind == types.BindTTL {
		if c.req.Wait == 0 {
			return nil, nil //nolint:nilnil // no lease is needed
		}
		ttl = c.m.cfg.TTL // keeps the place in the queue
	}
	for {
		l := c.m.pin(c.ctx, ttl)
		if err := c.opened(l); err != nil {
			l.unpin()
			return nil, err
		}
		if l.alive(c.tick) {
			return l, nil
		}
		l.unpin()
		c.m.lose(l, l.lossReason()) // found dead before the renewer did
		c.tick = clock.Read(c.m.clk)
	}
}

// opened waits until a lease is open, or the call gives up.
func (c *call) opened(l *lease) error {
	select {
	case <-l.opened: // nearly always
		return l.openErr
	default:
	}
	c.startTimer()
	err := c.until(l.opened)
	c.tick = clock.Read(c.m.clk)
	if err != nil {
		return err
	}
	return l.openErr
}

// until waits for something, or returns why the call gives up before.
func (c *call) until(something <-chan struct{}) error {
	ending, draining := c.endings()
	select {
	case <-something:
		return nil
	case <-c.time:
		c.timed, c.time = true, nil
		return c.timeout()
	case <-c.ctx.Done():
		return errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
	case <-ending:
		return types.ErrSessionEnded
	case <-c.withdrawn:
		return types.ErrWithdrawn
	case <-draining:
		return types.ErrDraining
	}
}

// endings are closed when the call's session ends, and when it must not wait any
// longer because the sidecar drains; a call that does not wait may finish.
func (c *call) endings() (session, draining <-chan struct{}) {
	if c.s != nil {
		session = c.s.Ending()
	}
	if c.req.Wait != 0 {
		draining = c.m.draining
	}
	return session, draining
}

// await returns the attempt's outcome, or leaves it because the call gives up.
func (c *call) await(b *attempt) (types.Grant, error) {
	if b.runInCaller && c.ctx.Err() != nil { // it left while it carried the question out itself
		b.callerLeft()
		return types.Grant{}, errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
	}
	if b.isOver() { // often at once; neither the timer nor the channel is free
		return c.outcome(b)
	}
	c.startTimer()
	ending, draining := c.endings()
	done := b.ends()
	for {
		var err error
		select {
		case <-done:
			return c.outcome(b)
		case <-c.time:
			c.timed, c.time = true, nil
			b.timeIsUp()
			continue
		case <-c.entry.opens():
			if g, ok := c.enter(); ok {
				b.callerLeft() // and its queue position
				return g, nil
			}
			continue
		case <-c.ctx.Done():
			err = errors.Join(types.ErrCallerLeft, context.Cause(c.ctx))
		case <-ending:
			err = types.ErrSessionEnded
		case <-c.withdrawn:
			err = types.ErrWithdrawn
		case <-draining:
			err = types.ErrDraining
		}
		b.callerLeft()
		return types.Grant{}, err
	}
}

// outcome translates how an attempt ended.
func (c *call) outcome(b *attempt) (types.Grant, error) {
	b.mu.Lock()
	g, err := b.result, b.err
	c.learnLocked(b)
	b.mu.Unlock()
	switch {
	case err == nil:
		return c.deliver(b, g)
	case errors.Is(err, errTimeUp):
		return types.Grant{}, c.timeout()
	case c.m.ctx.Err() != nil:
		return types.Grant{}, types.ErrDraining // stopped, whatever that did to the attempt
	default:
		return types.Grant{}, lanes.Refusal(c.ctx, err)
	}
}

// deliver returns what the attempt has won, unless it is lost before this call hears of it: then it
// is handed back, and the app never knows. A part of a group is told when all are there.
func (c *call) deliver(b *attempt, g types.Grant) (types.Grant, error) {
	var told bool
	switch {
	case g.Bind == types.BindTTL:
		g.ExpiresIn -= c.m.clk.Now().Sub(b.wonAt)
		told = g.ExpiresIn > 0
	case c.ofGroup:
		told = c.s.hasMember(&c.slot)
	default:
		told = c.s.publish(&c.slot)
		g.ExpiresIn = c.slot.left
	}
	if told {
		return g, nil
	}
	b.callerLeft() // also if the session has ended: the lock may have been lost before
	if c.s != nil && c.s.HasEnded() {
		return types.Grant{}, types.ErrSessionEnded
	}
	return types.Grant{}, b.whyNotKept()
}

// learnLocked takes over what an attempt has heard. b.mu is held.
func (c *call) learnLocked(b *attempt) {
	c.shared = b.shared
	if b.seen != nil && b.seen.Key != "" {
		c.seen = b.seen
	}
	if b.wasQueued {
		c.wasQueued, c.position = true, b.position
	}
}

func (c *call) timeout() error {
	// Time may be up before the call was queued: then, where it would have.
	lock, position := store.Lock{Key: c.req.Key}, c.position
	if c.seen != nil {
		lock = *c.seen
	}
	if position == 0 {
		position = lock.QueueLength + 1
	}
	return &types.TimeoutError{Lock: lock, Position: position, Waited: c.m.clk.Now().Sub(c.began)}
}

func (c *call) startTimer() {
	if c.timer == nil && c.req.Wait > 0 {
		c.timer = time.NewTimer(c.req.Wait - c.m.clk.Now().Sub(c.began))
		c.time = c.timer.C
	}
}

func (c *call) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}
