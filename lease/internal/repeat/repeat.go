// Package repeat finds the calls that carry the same request id, here called the calls of a
// request, and lets them take turns. So each call begins when nothing of the calls before it can
// change the store any more. It also counts to how many calls a grant was given, because a grant
// that one call does not want may belong to another.
package repeat

import (
	"slices"
	"sync"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
)

// Request is the calls that carry the same request id. They take turns. With BindTTL, a grant
// that one of them got and does not want is handed back only if no other call was given it: the
// other one rightly believes to hold it. (A session knows that of its locks by their entries.)
type Request struct {
	id   store.AttemptID
	turn chan struct{} // holds one token
	// token is the grant that was given last, given how many calls have it.
	// The turn guards both.
	token int64
	given int
	// users counts the calls. ends are those that a release by the id ends. The mutex of
	// Requests guards both.
	users int
	ends  []*Withdrawal
}

// Withdrawal ends a call when its request is released by its id.
type Withdrawal struct {
	over   chan struct{} // closed then
	closed bool          // guarded by the mutex of Requests
}

// NewWithdrawal makes a withdrawal for one call.
func NewWithdrawal() *Withdrawal { return &Withdrawal{over: make(chan struct{})} }

// Ended is closed when a release by the request's id ends the call.
func (w *Withdrawal) Ended() <-chan struct{} { return w.over }

// Requests finds the calls of a request. A request in use stays here however many others come:
// two calls of one request must not miss each other. A request without calls is remembered until
// as many others have come as Remember says. The zero value remembers none.
type Requests struct {
	mu    sync.Mutex
	inUse map[store.AttemptID]*Request
	idle  *lru.Cache[store.AttemptID, *Request] // nil: nothing is remembered
}

// Count is how many requests have calls under way.
func (rs *Requests) Count() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.inUse)
}

// Remembered is how many requests without calls under way are remembered.
func (rs *Requests) Remembered() int { return rs.idle.Len() }

// Remember makes rs remember so many requests that have no calls, and forget those of before.
func (rs *Requests) Remember(most int) (err error) {
	rs.idle, err = lru.New[store.AttemptID, *Request](most)
	return err
}

// Use finds the calls of a request. w ends this one, if it can be ended. done must follow.
func (rs *Requests) Use(id store.AttemptID, w *Withdrawal) *Request {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.inUse[id]
	if r == nil && rs.idle != nil {
		r, _ = rs.idle.Get(id)
	}
	if r == nil {
		r = &Request{id: id, turn: make(chan struct{}, 1)}
		r.turn <- struct{}{}
	}
	rs.retainLocked(r)
	if w != nil {
		r.ends = append(r.ends, w)
	}
	return r
}

// UseAgain goes on with r, which was found before. It reports false when r was
// forgotten meanwhile and a later call has come: that one knows nothing of r.
func (rs *Requests) UseAgain(r *Request) bool {
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

func (rs *Requests) retainLocked(r *Request) {
	r.users++
	if rs.inUse == nil {
		rs.inUse = make(map[store.AttemptID]*Request)
	}
	rs.inUse[r.id] = r
	if rs.idle != nil {
		rs.idle.Remove(r.id)
	}
}

// Done ends a use.
func (rs *Requests) Done(r *Request, w *Withdrawal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.ends = slices.DeleteFunc(r.ends, func(other *Withdrawal) bool { return other == w })
	if r.users--; r.users > 0 {
		return
	}
	delete(rs.inUse, r.id)
	if rs.idle != nil {
		rs.idle.Add(r.id, r)
	}
}

// Withdraw ends the calls of a request that are under way.
func (rs *Requests) Withdraw(r *Request) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, w := range r.ends {
		if !w.closed {
			w.closed = true
			close(w.over)
		}
	}
}

// Turns has a token for the call whose turn it is. Leave must follow.
func (r *Request) Turns() <-chan struct{} { return r.turn }

// Leave ends a turn.
func (r *Request) Leave() { r.turn <- struct{}{} }

// Give notes that a call is given a grant. The turn is held.
func (r *Request) Give(token int64) {
	if r.token != token {
		r.token, r.given = token, 0
	}
	r.given++
}

// Forget notes that no call has a grant any more. The turn is held.
func (r *Request) Forget() { r.token, r.given = 0, 0 }

// TakeBack notes that a call could not be given its grant, and reports whether
// nobody has it now. The turn is held.
func (r *Request) TakeBack(token int64) bool {
	if r.token != token {
		return false // a later grant of the key: this one is over
	}
	r.given--
	return r.given == 0
}

// Shared is the grant that earlier calls have, or 0. The turn is held.
func (r *Request) Shared() int64 {
	if r.given == 0 {
		return 0
	}
	return r.token
}

// AttemptID derives an id from that of a request: the same request gets the same, and
// nobody's request meets another key's.
func AttemptID(request uuid.UUID, key string) store.AttemptID {
	return uuid.NewSHA1(request, []byte(key))
}
