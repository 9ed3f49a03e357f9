package lease

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// takeTurn waits for the turn of a call, in a session or with BindTTL in none. The calls
// before it may wait in line for long, or be of unknown outcome: one that does not wait
// gives the store its time. A release by the id (w is nil) also goes on during a drain.
func (m *Manager) takeTurn(ctx context.Context, s *Session, r *repeat.Request, wait time.Duration, w *repeat.Withdrawal) error {
	select {
	case <-r.Turns(): // nearly always
		return nil
	default:
	}
	var over <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(max(wait, m.cfg.StoreTimeout))
		defer timer.Stop()
		over = timer.C
	}
	var ending, withdrawn, draining <-chan struct{}
	if s != nil {
		ending = s.Ending()
	}
	if w != nil {
		withdrawn, draining = w.Ended(), m.draining
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
		return errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
}

// leaveAfter ends the turn when nothing can change the store any more on behalf
// of the call's attempts: a late clean-up would free what the next call is given.
func (m *Manager) leaveAfter(rs *repeat.Requests, r *repeat.Request, attempts []*attempt) {
	rs.UseAgain(r)
	go func() {
		defer rs.Done(r, nil)
		for _, b := range attempts {
			b.inFlight.Wait()
		}
		r.Leave()
	}()
}

// handBackTTL gives a bind:ttl grant back that was not delivered, unless another
// call was given it: here, or, as only the store knows, by another sidecar where
// the request was repeated. The next call has its turn when the store has heard
// of it.
func (m *Manager) handBackTTL(g types.Grant) {
	c, matters := store.Claim{Key: g.Key, Token: g.Token, Undelivered: true, AtOnce: true}, m.within(g.ExpiresIn)
	free := func(settled func()) { m.free(context.Background(), c, matters, settled) }
	r := g.Repeats
	if r == nil { // a request without an id has no repeats
		free(func() {})
		return
	}
	if !m.requests.UseAgain(r) {
		return // what becomes of the grant is that call's
	}
	go func() {
		<-r.Turns()
		settled := func() {
			r.Leave()
			m.requests.Done(r, nil)
		}
		if !r.TakeBack(g.Token) {
			settled()
			return
		}
		free(settled)
	}()
}
