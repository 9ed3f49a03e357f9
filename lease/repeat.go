package lease

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/store"
)

// repeats are the calls that carry the same request id. They take turns; and a
// grant that could not be delivered to one call is given back only if no later
// call was given it too: that one believes, rightly, to hold it.
type repeats struct {
	turn chan struct{} // holds one token
	last int           // number of answered calls, guarded by turn
}

// repeatsOf finds the calls of a request. They are remembered as long as the
// ended grants are.
func (m *Manager) repeatsOf(id store.GrantID) *repeats {
	m.requestsMu.Lock()
	defer m.requestsMu.Unlock()
	r, ok := m.requests.Get(id)
	if !ok {
		r = &repeats{turn: make(chan struct{}, 1)}
		r.turn <- struct{}{}
		m.requests.Add(id, r)
	}
	return r
}

// enter waits for the turn.
func (r *repeats) enter(ctx context.Context) error {
	select {
	case <-r.turn:
		return nil
	case <-ctx.Done():
		return errors.Join(ErrAbandoned, context.Cause(ctx))
	}
}

func (r *repeats) leave() { r.turn <- struct{}{} }

// leaveAfter ends the turn when nothing can change the store any more on behalf
// of the call's bids: a late clean-up would free what the next call is given.
func (r *repeats) leaveAfter(bids []*bid) {
	go func() {
		for _, b := range bids {
			b.loose.Wait()
		}
		r.leave()
	}()
}

// answered counts a call that is given the grant. The turn is held.
func (r *repeats) answered() int {
	r.last++
	return r.last
}

// discard gives a grant back that was not delivered, unless a later call was
// given it. The next call has its turn when the store has heard of it.
func (r *repeats) discard(g Grant, free func(settled func())) {
	if r == nil { // a request without an id has no repeats
		free(func() {})
		return
	}
	go func() {
		<-r.turn
		if r.last != g.repeat {
			r.leave()
			return
		}
		free(r.leave)
	}()
}
