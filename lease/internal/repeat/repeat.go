// Package repeat finds the calls with the same request id, here called the calls of a request, and lets
// them take turns. So each call begins when earlier calls can no longer change the store for this request.
// It counts the calls that got a grant, because an unwanted grant may belong to another call.
package repeat

import (
	"slices"
	"sync"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
)

// Request contains the calls with one request id. With BindTTL, an unwanted grant is handed back only if no
// other call got it, because that call rightly believes that it holds the lock.
type Request struct {
	id   store.AttemptID
	turn chan struct{} // holds one token
	// token is the last grant. given is how many calls have it. The turn guards both.
	token int64
	given int
	// users counts the calls. ends are the ones that a release by the id ends. The mutex of Requests guards both.
	users int
	ends  []*Withdrawal
}

// Withdrawal ends a call when its request id is released.
type Withdrawal struct {
	over   chan struct{} // closed when the call must end
	closed bool          // guarded by the mutex of Requests
}

// NewWithdrawal makes the withdrawal of one call.
func NewWithdrawal() *Withdrawal { return &Withdrawal{over: make(chan struct{})} }

// Ended is closed when a release by the request id ends the call.
func (w *Withdrawal) Ended() <-chan struct{} { return w.over }

// Requests finds the calls of a request. A request in use always stays, because its calls must find each
// other. Remember sets how many others stay; by default none.
type Requests struct {
	mu    sync.Mutex
	inUse map[store.AttemptID]*Request
	idle  *lru.Cache[store.AttemptID, *Request] // nil: unused requests are forgotten
}

// Count is the number of requests with running calls.
func (rs *Requests) Count() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.inUse)
}

// Remember limits the remembered requests without calls, and forgets the present ones.
func (rs *Requests) Remember(most int) (err error) {
	rs.idle, err = lru.New[store.AttemptID, *Request](most)
	return err
}

// Use adds a call to a request. w ends this call, if it can be ended. Done must follow.
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

// UseAgain continues with r. It returns false if r was forgotten and a later call has made another Request.
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

// Withdraw ends the running calls of a request.
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

// Give counts a call that gets a grant. The caller has the turn.
func (r *Request) Give(token int64) {
	if r.token != token {
		r.token, r.given = token, 0
	}
	r.given++
}

// Forget records that no call has a grant. The caller has the turn.
func (r *Request) Forget() { r.token, r.given = 0, 0 }

// TakeBack records that a call did not get its grant, and reports whether no call has it. The caller has the turn.
func (r *Request) TakeBack(token int64) bool {
	if r.token != token {
		return false // a later grant of the key is recorded
	}
	r.given--
	return r.given == 0
}

// Repeated returns the grant that earlier calls have, or 0. The caller has the turn.
func (r *Request) Repeated() int64 {
	if r.given == 0 {
		return 0
	}
	return r.token
}

// AttemptID derives an attempt id from request and key. It is the same for the same pair only.
func AttemptID(request uuid.UUID, key string) store.AttemptID {
	return uuid.NewSHA1(request, []byte(key))
}
