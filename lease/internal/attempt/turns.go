package attempt

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// acquireInTurn gets a lock under a request id, after the earlier calls with this id. A repeat gets the same lock: that of a session
// from the session while it is held, and a bind:ttl lock from the store.
func (aq *Acquirer) acquireInTurn(c *Call) (types.Grant, error) {
	w, rs, req := repeat.NewWithdrawal(), aq.RequestsOf(c.S), c.req
	c.began, c.withdrawn = aq.clk.Now(), w.Ended()
	r := rs.Use(repeat.AttemptID(req.RequestID, req.Key), w)
	defer rs.Done(r, w)
	if err := aq.TakeTurn(c.ctx, c.S, r, c.began, req.Wait, w); err != nil {
		return types.Grant{}, err
	}
	if c.S == nil {
		c.repeated = r.Repeated()
	} else if g, ok := aq.again(c); ok {
		r.Leave()
		return g, nil
	}
	g, err := c.Run()
	if err == nil && c.S == nil {
		g.Repeats = r
		r.Give(g.Token)
	}
	aq.EndTurn(c, r, err == nil)
	return g, err
}

// again returns the lock that the call's session holds under the call's request id.
func (aq *Acquirer) again(c *Call) (g types.Grant, ok bool) {
	waited := aq.clk.Now().Sub(c.began) // before the lock's remaining time is read
	if g, ok = c.S.Again(c.req.Key, c.req.RequestID); ok {
		aq.obs.Cached(observe.CachedRepeat)
		g.Waited = waited
	}
	return g, ok
}

// TakeTurn waits for the turn of a call in a session, or with BindTTL outside sessions. Its time counts from began, and is at least
// the store's timeout, because earlier calls may take long. A release by the id (w is nil) also continues
// during a drain.
func (aq *Acquirer) TakeTurn(ctx context.Context, s *holdings.Session, r *repeat.Request, began time.Time, wait time.Duration, w *repeat.Withdrawal) error {
	select {
	case <-r.Turns(): // the usual case
		return nil
	default:
	}
	var over <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(max(wait, aq.cfg.StoreTimeout) - aq.clk.Now().Sub(began))
		defer timer.Stop()
		over = timer.C
	}
	var ending, withdrawn, draining <-chan struct{}
	if s != nil {
		ending = s.Ending()
	}
	if w != nil {
		withdrawn, draining = w.Ended(), aq.draining
	}
	select {
	case <-r.Turns():
		return nil
	case <-over:
		return &store.Error{Op: "acquire", Err: errors.New("an earlier call with the same request_id is not decided yet")}
	case <-ending:
		return types.ErrSessionEnded
	case <-withdrawn:
		return types.ErrWithdrawn
	case <-draining:
		return types.ErrDraining
	case <-ctx.Done():
		return types.Left(ctx)
	}
}

// EndTurn ends the turn of a call; got: it has its lock. The turn ends at once if the call did not ask the store, or has a session's lock,
// which the session gives to a repeat. Otherwise it ends when nothing of the call is in flight: a repeat has the same attempt id, so a late
// cleanup would free its grant.
func (aq *Acquirer) EndTurn(c *Call, r *repeat.Request, got bool) {
	if !c.Asked() || got && c.S != nil {
		r.Leave()
		return
	}
	rs := aq.RequestsOf(c.S)
	rs.UseAgain(r)
	go func() {
		defer rs.Done(r, nil)
		c.inFlight.Wait()
		r.Leave()
	}()
}

// RequestsOf returns the requests of a session, or with nil those with BindTTL.
func (aq *Acquirer) RequestsOf(s *holdings.Session) *repeat.Requests {
	if s != nil {
		return &s.Requests
	}
	return &aq.requests
}

// EndCalls ends the running calls of a request, and takes the turn until leave is called.
func (aq *Acquirer) EndCalls(ctx context.Context, s *holdings.Session, id store.AttemptID) (r *repeat.Request, leave func(), err error) {
	rs := aq.RequestsOf(s)
	r = rs.Use(id, nil)
	rs.Withdraw(r)
	if err := aq.TakeTurn(ctx, s, r, aq.clk.Now(), 0, nil); err != nil {
		rs.Done(r, nil)
		return nil, nil, err
	}
	return r, func() {
		r.Leave()
		rs.Done(r, nil)
	}, nil
}

// CleanedUp is closed when no attempt of the call can change the store any more.
func (c *Call) CleanedUp() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		c.inFlight.Wait()
		close(settled)
	}()
	return settled
}

// handBackTTL hands back an undelivered bind:ttl grant, unless another call got it: here, or at another
// sidecar, which only the store knows. The next call's turn begins when the store has answered.
func (aq *Acquirer) handBackTTL(g types.Grant) {
	c, mayHave := store.Claim{Key: g.Key, Token: g.Token, Undelivered: true, AtOnce: true}, aq.MayHave(nil, g.ExpiresIn)
	free := func(settled func()) { aq.ReleaseClaim(context.Background(), c, mayHave, settled) }
	r := g.Repeats
	if r == nil { // a request without an id is never repeated
		free(func() {})
		return
	}
	if !aq.requests.UseAgain(r) {
		return // a later call decides about the grant
	}
	go func() {
		<-r.Turns()
		settled := func() {
			r.Leave()
			aq.requests.Done(r, nil)
		}
		if !r.TakeBack(g.Token) {
			settled()
			return
		}
		free(settled)
	}()
}
