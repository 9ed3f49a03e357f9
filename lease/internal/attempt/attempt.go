package attempt

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Attempt is one attempt to get one lock under one attempt id and one lease, from the first question to the
// store until its outcome is known. If its call leaves, the attempt continues alone, and hands back what it
// still wins. So a grant is never lost or leaked.
//
//	asking ──held, call waits──▶ arrived ──▶ enqueuing ──▶ queued ──time up──▶ cancelling
//	  │                             │            │            │                    │
//	  └─────────────────────────────┴─ over: won, or not ─────┴────────────────────┘
//
// If its call is not the first to arrive for its key, an attempt begins in the state arrived: see arrivals.
type Attempt struct {
	aq          *Acquirer
	s           *holdings.Session // nil with BindTTL
	slot        *holdings.Slot    // of the call, in the session
	req         *types.Request
	under       atomic.Pointer[heartbeat.Lease] // nil for a BindTTL attempt that does not wait; changed under mu
	id          store.AttemptID
	tr          *observe.Call // of the call
	began       time.Time     // of the call, for Waited
	sent        time.Time     // when the running question was sent
	wonAt       time.Time
	runInCaller bool // the call's goroutine runs the first question: see batcher.Lane.Do
	// arrival is nil if the call does not wait.
	arrival *Arrival
	// since is a time before the grant. until is the end of its MaxHold (zero: none).
	since, until time.Time

	mu    sync.Mutex
	phase phase
	// The reasons why an attempt leaves the queue: the call has left, its time is up, or its lease was lost.
	unwanted, timeUp, positionLost bool

	cacheVersion uint64      // of the held cache
	seen         *store.Lock // the holder by the last answer; nil: unknown
	seenAt       time.Time   // when the question of that answer was sent
	position     int         // the queue position by the last answer; 0: unknown
	wasQueued    bool

	// The times of checks. hinted: the attempt should be checked now. It may be set before the attempt is queued,
	// or during a check.
	checkAt, checkedAt time.Time
	holderExpiry       time.Time // by the last answer
	hinted, checking   bool

	shared int64 // the grant that other calls also have, or 0
	result types.Grant
	err    error
	// ended: the attempt is over and has ended its use of lease and queue. done is then closed; it is nil until a
	// caller waits.
	ended bool
	done  chan struct{}
	// inQueue: the attempt may be in the queue.
	inQueue atomic.Bool
	// inStore: the store has queued the attempt. The mutex of the queue guards this.
	inStore bool

	inFlight *sync.WaitGroup // of the call
}

type phase uint8

const (
	asking phase = iota
	arrived
	enqueuing
	queued
	cancelling
	over
)

var (
	// errTimeUp ends an attempt whose call's wait is over.
	errTimeUp = errors.New("waited in vain")
	// ErrAttemptLost ends an attempt whose lease or queue position is lost. The call may try again.
	ErrAttemptLost = errors.New("the lease or the place in line is gone")
)

// NewAttempt makes the next attempt of a call, which arrived as came. It fails without a lease.
func (c *Call) NewAttempt(came *Arrival) (*Attempt, error) {
	l, err := c.lease()
	if err != nil {
		if came != nil {
			came.Leave()
		}
		return nil, err
	}
	b := &Attempt{
		aq: c.aq, s: c.S, slot: &c.Slot, req: c.req, arrival: came, began: c.began, shared: c.shared, tr: c.tr, inFlight: &c.inFlight,
	}
	b.under.Store(l)
	b.inFlight.Add(1)
	if SharesGrant(c.req) {
		b.id = repeat.AttemptID(c.req.RequestID, c.req.Key)
	} else {
		b.id = uuid.New()
	}
	c.attempts++
	return b, nil
}

// SharesGrant reports whether repeats of the request have the same attempt id at all sidecars. Repeats in a
// session do not need this, because the session knows its locks.
func SharesGrant(r *types.Request) bool { return r.Bind == types.BindTTL && r.RequestID != uuid.Nil }

// Lease is the lease under which the attempt waits, or asks for a session's lock.
func (b *Attempt) Lease() *heartbeat.Lease { return b.under.Load() }

// Key is the key that the attempt asks for.
func (b *Attempt) Key() string { return b.req.Key }

// Ref names the attempt to the store.
func (b *Attempt) Ref() store.Attempt { return store.Attempt{Key: b.req.Key, ID: b.id} }

// lasts is how long a lock keeps its key after the attempt's lease.
func (b *Attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// Finish ends an attempt that has not won.
func (b *Attempt) Finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close sets the phase to over without a win. It returns the previous phase, and whether that was not over.
func (b *Attempt) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// end ends the attempt's use of its queue position, its arrival and its lease.
func (b *Attempt) end() {
	if b.inQueue.Load() {
		b.aq.queue.remove(b)
	}
	if b.arrival != nil {
		b.arrival.Leave()
	}
	if b.Lease() != nil {
		b.Lease().Unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.inFlight.Done()
}

// IsOver reports whether an attempt is over and has ended.
func (b *Attempt) IsOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Ends is closed when IsOver is true.
func (b *Attempt) Ends() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = make(chan struct{})
		if b.ended {
			close(b.done)
		}
	}
	return b.done
}
