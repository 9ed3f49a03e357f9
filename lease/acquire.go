package lease

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// Acquire gets a lock for a session, or with BindTTL for nobody (s is nil or
// ignored then). It returns when the lock is granted, refused, or not to be had
// in the time that the request waits. When ctx ends, the call has left: it returns
// [ErrAbandoned], and what the store grants all the same is given back.
//
// Errors: [HeldError], [TimeoutError], [LimitError], [ErrSessionEnded],
// [ErrDraining], [ErrAbandoned], and those of the store.
func (m *Manager) Acquire(ctx context.Context, s *Session, req Request) (Grant, error) {
	if m.isDraining() {
		return Grant{}, ErrDraining
	}
	if req.TTL == 0 {
		req.TTL = m.cfg.TTL
		if s != nil && req.Bind == BindSession {
			req.TTL = s.ttl
		}
	}
	if req.Bind == BindTTL {
		return m.acquireTTL(ctx, &req)
	}
	if err := s.admit(); err != nil {
		return Grant{}, err
	}
	defer s.leave()
	if lock, ok := m.deniedHere(&req); ok {
		return Grant{}, &HeldError{Lock: lock, Cached: true}
	}
	return m.acquire(ctx, &call{s: s, req: &req})
}

// acquireTTL gets a bind:ttl lock. Calls with the same request id take turns, so
// that a repeat finds what became of the first.
func (m *Manager) acquireTTL(ctx context.Context, req *Request) (Grant, error) {
	if req.RequestID == uuid.Nil {
		if lock, ok := m.deniedHere(req); ok {
			return Grant{}, &HeldError{Lock: lock, Cached: true}
		}
		return m.acquire(ctx, &call{req: req})
	}
	r := m.repeatsOf(grantFor(req))
	if err := r.enter(ctx); err != nil {
		return Grant{}, err
	}
	c := &call{req: req}
	defer func() { r.leaveAfter(c.bids) }()
	g, err := m.acquire(ctx, c)
	if err == nil {
		g.repeats, g.repeat = r, r.answered()
	}
	return g, err
}

// deniedHere answers from what is known here that a key is held: by a session of
// this sidecar, or by somebody else of whom the store told a moment ago.
func (m *Manager) deniedHere(req *Request) (store.Lock, bool) {
	if req.Wait != 0 || req.NoCache {
		return store.Lock{}, false
	}
	if h := m.held.get(req.Key); h != nil && h.lease.alive(m.clk) {
		return m.lockOf(h), true
	}
	return m.denials.get(req.Key)
}

// knownHeld reports whether a session of this sidecar holds the key.
func (m *Manager) knownHeld(key string) bool {
	h := m.held.get(key)
	return h != nil && h.lease.alive(m.clk)
}

// acquire makes bids until one wins or the call gives up.
func (m *Manager) acquire(ctx context.Context, c *call) (Grant, error) {
	if c.req.Wait != 0 {
		if n := m.waiters.Add(1); n > int64(m.cfg.MaxWaiters) {
			m.waiters.Add(-1)
			return Grant{}, &LimitError{What: "waiting calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: m.cfg.MaxWaiters}
		}
		defer m.waiters.Add(-1)
	}
	c.m, c.ctx, c.began = m, ctx, m.clk.Now()
	defer c.stopTimer()
	for {
		l, err := m.leaseFor(ctx, c.req)
		if err != nil {
			return Grant{}, err
		}
		b := m.newBid(c.s, c.req, l, c.began)
		c.bids = append(c.bids, b)
		b.start(ctx)
		g, err := c.await(b)
		if !errors.Is(err, errBidLost) {
			return g, err
		}
		if err := c.mayGoOn(); err != nil {
			return Grant{}, err
		}
	}
}

// leaseFor returns the lease that a bid needs, pinned, or nil for a bind:ttl
// request that does not wait.
func (m *Manager) leaseFor(ctx context.Context, req *Request) (*renewed, error) {
	ttl := req.TTL
	if req.Bind == BindTTL {
		if req.Wait == 0 {
			return nil, nil
		}
		ttl = m.cfg.TTL // keeps the place in the queue
	}
	return m.lease(ctx, ttl)
}

// call is what stays the same over the bids of one Acquire.
type call struct {
	m     *Manager
	ctx   context.Context
	s     *Session
	req   *Request
	began time.Time
	bids  []*bid

	timer *time.Timer
	time  <-chan time.Time // fires when the wait is over
	timed bool             // it has fired
}

// maxBids limits how often a call that does not wait tries again after its lease
// was lost under it.
const maxBids = 3

// await returns the bid's outcome, or leaves it because the call gives up.
func (c *call) await(b *bid) (Grant, error) {
	select {
	case <-b.done: // often at once; the timer is not free
		return c.outcome(b)
	default:
	}
	c.startTimer()
	var ending, draining <-chan struct{}
	if c.s != nil {
		ending = c.s.ending
	}
	if c.req.Wait != 0 {
		draining = c.m.draining
	}
	for {
		var err error
		select {
		case <-b.done:
			return c.outcome(b)
		case <-c.time:
			c.timed, c.time = true, nil
			b.timeIsUp()
			continue
		case <-c.ctx.Done():
			err = errors.Join(ErrAbandoned, context.Cause(c.ctx))
		case <-ending:
			err = ErrSessionEnded
		case <-draining:
			err = ErrDraining
		}
		b.abandon()
		return Grant{}, err
	}
}

// outcome translates how a bid ended.
func (c *call) outcome(b *bid) (Grant, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(b.err, errTimeUp):
		return Grant{}, &TimeoutError{Lock: b.seen, Position: b.position, Waited: c.m.clk.Now().Sub(c.began)}
	case b.err == nil && c.s != nil && c.s.hasEnded():
		return Grant{}, ErrSessionEnded // and its end has released the lock
	case b.err != nil && c.ctx.Err() != nil:
		return Grant{}, errors.Join(ErrAbandoned, b.err)
	default:
		return b.result, b.err
	}
}

// mayGoOn decides whether another bid makes sense after one was lost.
func (c *call) mayGoOn() error {
	switch {
	case c.ctx.Err() != nil:
		return ErrAbandoned
	case c.s != nil && c.s.hasEnded():
		return ErrSessionEnded
	case c.m.isDraining():
		return ErrDraining
	case c.timed:
		return &TimeoutError{Lock: store.Lock{Key: c.req.Key}, Waited: c.m.clk.Now().Sub(c.began)}
	case c.req.Wait == 0 && len(c.bids) >= maxBids:
		return &store.Error{Op: "acquire", Err: errors.New("the lease under the lock was lost")}
	default:
		return nil
	}
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
