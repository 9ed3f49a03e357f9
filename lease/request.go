package lease

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// acquireInTurn gets a lock for a session under the id of the request. A repeat gets what
// became of the first, as long as the session holds it.
func (m *Manager) acquireInTurn(ctx context.Context, c *call) (types.Grant, error) {
	w, rs, req := repeat.NewWithdrawal(), &c.s.requests, c.req
	c.began, c.withdrawn = m.clk.Now(), w.Ended()
	r := rs.Use(repeat.AttemptID(req.RequestID, req.Key), w)
	defer rs.Done(r, w)
	if err := m.takeTurn(ctx, c.s, r, req.Wait, w); err != nil {
		return types.Grant{}, err
	}
	waited := m.clk.Now().Sub(c.began) // before what is left of the lock is reckoned
	if g, ok := c.s.again(req.Key, req.RequestID); ok {
		r.Leave()
		m.obs.Cached(observe.CachedRepeat)
		g.Waited = waited
		return g, nil
	}
	g, err := m.acquireIn(ctx, c)
	m.leaveInTurn(rs, r, c.attempts, err)
	return g, err
}

// leaveInTurn ends the turn of a call of a session: at once if it has the lock, or has not
// asked the store for it.
func (m *Manager) leaveInTurn(rs *repeat.Requests, r *repeat.Request, attempts []*attempt, err error) {
	if err == nil || len(attempts) == 0 {
		r.Leave()
		return
	}
	m.leaveAfter(rs, r, attempts)
}

// releaseRequest releases what calls with a request id have got: in the session, or else
// with BindTTL. Those that are under way here end before, with [ErrWithdrawn].
func (m *Manager) releaseRequest(ctx context.Context, s *Session, req *types.ReleaseRequest) (types.Released, error) {
	if s != nil {
		if out, err := m.releaseRequestOf(ctx, s, req); err != nil || !out.Nothing {
			return out, err
		}
	}
	a := store.Attempt{Key: req.Key, ID: repeat.AttemptID(req.RequestID, req.Key), Undelivered: true}
	r, leave, err := m.endCalls(ctx, nil, &m.requests, a.ID)
	if err != nil {
		return types.Released{}, err
	}
	// The turn lasts until the store has answered: a late cancel would end the next call.
	ans, err := lanes.Submit(context.WithoutCancel(ctx), m.lanes.Cancels, a) // finds what another sidecar was granted, too
	if err == nil && ans.Outcome == store.RowLocked {
		err = types.RowLocked("release")
	}
	if err != nil {
		leave()
		return types.Released{}, err
	}
	nothing := types.Released{Key: req.Key, Nothing: true}
	if ans.Outcome != store.Granted {
		r.Forget()
		leave()
		return nothing, nil
	}
	out, err := m.releaseForeign(ctx, claimant{"release", s, req.Key, ans.Token, req.Traceparent}, req)
	ended := is[*types.NotHolderError](err) || is[*types.LostError](err) // in this moment
	switch {
	case err == nil, ended:
		r.Forget()
		leave()
	case store.OutcomeUnknown(err), errors.Is(err, types.ErrCallerLeft):
		// The release may come yet: a repeat must not be told of the grant before it is over.
		r.Forget()
		m.free(context.Background(), store.Claim{Key: req.Key, Token: ans.Token, Outcome: req.Outcome, Result: req.Result},
			m.within(ans.ExpiresIn), leave)
	default:
		leave()
	}
	if ended {
		return nothing, nil
	}
	return out, err
}

// releaseRequestOf is releaseRequest for what a session has.
func (m *Manager) releaseRequestOf(ctx context.Context, s *Session, req *types.ReleaseRequest) (types.Released, error) {
	_, leave, err := m.endCalls(ctx, s, &s.requests, repeat.AttemptID(req.RequestID, req.Key))
	if err != nil {
		return types.Released{}, err
	}
	h, t := s.has(req.Key, req.RequestID), clock.Read(m.clk)
	if h != nil && !h.valid(t) {
		m.expire(h)
		h = nil
	}
	if h == nil {
		defer leave()
		return m.nothingOnceFreed(ctx, s, req.Key)
	}
	m.obs.LinkAcquire(ctx, h.traceparent)
	r := h.newRelease(req, t.Now, leave) // who repeats this waits until the store has confirmed it
	switch entries, err := s.exit(h, r); {
	case err != nil: // it was lost or released in this moment
		defer leave()
		return m.nothingOnceFreed(ctx, s, req.Key)
	case entries > 0:
		leave()
		return types.Released{Key: req.Key, Reentry: entries, HeldFor: r.heldFor}, nil
	}
	return r.sendAndWait(ctx)
}

// nothingOnceFreed answers that nothing is held, when no release of the key is under way in
// the session: it may be that of what the id has got.
func (m *Manager) nothingOnceFreed(ctx context.Context, s *Session, key string) (types.Released, error) {
	if r := s.freeingOf(key); r != nil {
		if _, err := r.again(ctx, m.cfg.StoreTimeout); err != nil {
			return types.Released{}, err
		}
	}
	return types.Released{Key: key, Nothing: true}, nil
}

// endCalls ends the calls of a request that are under way, and takes the turn, until leave
// is called.
func (m *Manager) endCalls(ctx context.Context, s *Session, rs *repeat.Requests, id store.AttemptID) (r *repeat.Request, leave func(), err error) {
	r = rs.Use(id, nil)
	rs.Withdraw(r)
	if err := m.takeTurn(ctx, s, r, 0, nil); err != nil {
		rs.Done(r, nil)
		return nil, nil, err
	}
	return r, func() {
		r.Leave()
		rs.Done(r, nil)
	}, nil
}
