package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
)

// repeats are the calls that carry the same request id. They take turns; and
// what one of them got and does not want, or may have got, is given back only if
// no other was given the same grant: that one believes, rightly, to hold it.
type repeats struct {
	id   store.GrantID
	turn chan struct{} // holds one token
	// token is the grant that was given last, given how many calls have it.
	// Guarded by turn.
	token int64
	given int
	users int // guarded by the mutex of requests
}

// requests finds the calls of a request. Those in use stay here however many
// others come; two calls of one request must not miss each other. The others are
// remembered until as many others have come as there are endings.
type requests struct {
	mu    sync.Mutex
	inUse map[store.GrantID]*repeats
	idle  *lru.Cache[store.GrantID, *repeats]
}

func newRequests() (*requests, error) {
	idle, err := lru.New[store.GrantID, *repeats](rememberedGrants)
	return &requests{inUse: make(map[store.GrantID]*repeats), idle: idle}, err
}

// use finds the calls of a request. done must follow.
func (rs *requests) use(id store.GrantID) *repeats {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.inUse[id]
	if r == nil {
		r, _ = rs.idle.Get(id)
	}
	if r == nil {
		r = &repeats{id: id, turn: make(chan struct{}, 1)}
		r.turn <- struct{}{}
	}
	rs.retainLocked(r)
	return r
}

// useAgain goes on with r, which was found before. It reports false when r was
// forgotten meanwhile and a later call has come: that one knows nothing of r.
func (rs *requests) useAgain(r *repeats) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	later := rs.inUse[r.id]
	if later == nil {
		later, _ = rs.idle.Peek(r.id)
	}
	if later != nil && later != r {
		return false
	}
	rs.retainLocked(r)
	return true
}

func (rs *requests) retainLocked(r *repeats) {
	r.users++
	rs.inUse[r.id] = r
	rs.idle.Remove(r.id)
}

// done ends a use.
func (rs *requests) done(r *repeats) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.users--; r.users == 0 {
		delete(rs.inUse, r.id)
		rs.idle.Add(r.id, r)
	}
}

// takeTurn waits for the turn of a call. The calls before it may wait in line for
// long, or be of unknown outcome: one that does not wait gives the store its time.
func (m *Manager) takeTurn(ctx context.Context, r *repeats, wait time.Duration) error {
	select {
	case <-r.turn: // nearly always
		return nil
	default:
	}
	var over <-chan time.Time
	if wait >= 0 {
		timer := time.NewTimer(max(wait, m.cfg.StoreTimeout))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-r.turn:
		return nil
	case <-over:
		return &store.Error{Op: "acquire", Err: errors.New("an earlier call with the same request_id is not decided yet")}
	case <-m.draining:
		return ErrDraining
	case <-ctx.Done():
		return errors.Join(ErrAbandoned, context.Cause(ctx))
	}
}

func (r *repeats) leave() { r.turn <- struct{}{} }

// leaveAfter ends the turn when nothing can change the store any more on behalf
// of the call's bids: a late clean-up would free what the next call is given.
func (m *Manager) leaveAfter(r *repeats, bids []*bid) {
	m.requests.useAgain(r)
	go func() {
		defer m.requests.done(r)
		for _, b := range bids {
			b.loose.Wait()
		}
		r.leave()
	}()
}

// give notes that a call is given a grant. The turn is held.
func (r *repeats) give(token int64) {
	if r.token != token {
		r.token, r.given = token, 0
	}
	r.given++
}

// takeBack notes that a call could not be given its grant, and reports whether
// nobody has it now. The turn is held.
func (r *repeats) takeBack(token int64) bool {
	if r.token != token {
		return false // a later grant of the key: this one is over
	}
	r.given--
	return r.given == 0
}

// shared is the grant that earlier calls have, or 0. The turn is held.
func (r *repeats) shared() int64 {
	if r.given == 0 {
		return 0
	}
	return r.token
}

// giveBack gives a bind:ttl grant back that was not delivered, unless another
// call was given it: here, or, as only the store knows, by another sidecar where
// the request was repeated. The next call has its turn when the store has heard
// of it.
func (m *Manager) giveBack(g Grant) {
	c, matters := store.Claim{Key: g.Key, Token: g.Token, Untold: true, AtOnce: true}, m.within(g.ExpiresIn)
	free := func(settled func()) { m.free(context.Background(), c, matters, settled) }
	r := g.repeats
	if r == nil { // a request without an id has no repeats
		free(func() {})
		return
	}
	if !m.requests.useAgain(r) {
		return // what becomes of the grant is that call's
	}
	go func() {
		<-r.turn
		settled := func() {
			r.leave()
			m.requests.done(r)
		}
		if !r.takeBack(g.Token) {
			settled()
			return
		}
		free(settled)
	}()
}
