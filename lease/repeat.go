package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
)

// repeats are the calls that carry the same request id. They take turns. With BindTTL,
// what one of them got and does not want, or may have got, is handed back only if no other
// was given the same grant: that one believes, rightly, to hold it. (A session knows that
// of its locks by their entries.)
type repeats struct {
	id   store.AttemptID
	turn chan struct{} // holds one token
	// token is the grant that was given last, given how many calls have it.
	// Guarded by turn.
	token int64
	given int
	// users and those of them that a release by the id ends are guarded by the mutex of
	// requests.
	users int
	ends  []*withdrawal
}

// withdrawal ends a call when its request is released by its id.
type withdrawal struct {
	over   chan struct{} // closed then
	closed bool          // guarded by the mutex of requests
}

func newWithdrawal() *withdrawal { return &withdrawal{over: make(chan struct{})} }

// requests finds the calls of a request. Those in use stay here however many
// others come; two calls of one request must not miss each other. With BindTTL, the others
// are remembered until as many others have come as there are endings.
type requests struct {
	mu    sync.Mutex
	inUse map[store.AttemptID]*repeats
	idle  *lru.Cache[store.AttemptID, *repeats] // nil: nothing is remembered
}

// remember makes requests remember so many that are not in use.
func (rs *requests) remember(most int) (err error) {
	rs.idle, err = lru.New[store.AttemptID, *repeats](most)
	return err
}

// use finds the calls of a request. w ends this one, if it can be ended. done must follow.
func (rs *requests) use(id store.AttemptID, w *withdrawal) *repeats {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.inUse[id]
	if r == nil && rs.idle != nil {
		r, _ = rs.idle.Get(id)
	}
	if r == nil {
		r = &repeats{id: id, turn: make(chan struct{}, 1)}
		r.turn <- struct{}{}
	}
	rs.retainLocked(r)
	if w != nil {
		r.ends = append(r.ends, w)
	}
	return r
}

// useAgain goes on with r, which was found before. It reports false when r was
// forgotten meanwhile and a later call has come: that one knows nothing of r.
func (rs *requests) useAgain(r *repeats) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	later := rs.inUse[r.id]
	if later == nil && rs.idle != nil {
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
	if rs.inUse == nil {
		rs.inUse = make(map[store.AttemptID]*repeats)
	}
	rs.inUse[r.id] = r
	if rs.idle != nil {
		rs.idle.Remove(r.id)
	}
}

// done ends a use.
func (rs *requests) done(r *repeats, w *withdrawal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.ends = slices.DeleteFunc(r.ends, func(other *withdrawal) bool { return other == w })
	if r.users--; r.users > 0 {
		return
	}
	delete(rs.inUse, r.id)
	if rs.idle != nil {
		rs.idle.Add(r.id, r)
	}
}

// withdraw ends the calls of a request that are under way.
func (rs *requests) withdraw(r *repeats) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, w := range r.ends {
		if !w.closed {
			w.closed = true
			close(w.over)
		}
	}
}

// takeTurn waits for the turn of a call, in a session or with BindTTL in none. The calls
// before it may wait in line for long, or be of unknown outcome: one that does not wait
// gives the store its time. A release by the id (w is nil) also goes on during a drain.
func (m *Manager) takeTurn(ctx context.Context, s *Session, r *repeats, wait time.Duration, w *withdrawal) error {
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
	var ending, withdrawn, draining <-chan struct{}
	if s != nil {
		ending = s.ending
	}
	if w != nil {
		withdrawn, draining = w.over, m.draining
	}
	select {
	case <-r.turn:
		return nil
	case <-over:
		return &store.Error{Op: "acquire", Err: errors.New("an earlier call with the same request_id is not decided yet")}
	case <-ending:
		return ErrSessionEnded
	case <-withdrawn:
		return ErrWithdrawn
	case <-draining:
		return ErrDraining
	case <-ctx.Done():
		return errors.Join(ErrCallerLeft, context.Cause(ctx))
	}
}

func (r *repeats) leave() { r.turn <- struct{}{} }

// leaveAfter ends the turn when nothing can change the store any more on behalf
// of the call's attempts: a late clean-up would free what the next call is given.
func (m *Manager) leaveAfter(rs *requests, r *repeats, attempts []*attempt) {
	rs.useAgain(r)
	go func() {
		defer rs.done(r, nil)
		for _, b := range attempts {
			b.inFlight.Wait()
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

// forget notes that no call has a grant any more. The turn is held.
func (r *repeats) forget() { r.token, r.given = 0, 0 }

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

// handBackTTL gives a bind:ttl grant back that was not delivered, unless another
// call was given it: here, or, as only the store knows, by another sidecar where
// the request was repeated. The next call has its turn when the store has heard
// of it.
func (m *Manager) handBackTTL(g Grant) {
	c, matters := store.Claim{Key: g.Key, Token: g.Token, Undelivered: true, AtOnce: true}, m.within(g.ExpiresIn)
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
			m.requests.done(r, nil)
		}
		if !r.takeBack(g.Token) {
			settled()
			return
		}
		free(settled)
	}()
}
