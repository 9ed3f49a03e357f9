package attempt

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Attempt is one attempt to get one lock under one attempt id and one lease, from the first question to the
// store until its outcome is known. If its call leaves, the attempt continues alone, and hands back what it
// still wins. So a grant is never lost or leaked. phase.go draws its phases.
type Attempt struct {
	// NewAttempt sets these fields. They never change.
	aq          *Acquirer
	s           *holdings.Session   // nil with BindTTL
	admission   *holdings.Admission // of the call, in the session
	req         *types.Request
	id          store.AttemptID
	tr          *observe.Trace  // of the call
	began       time.Time       // of the call, for Waited
	inFlight    *sync.WaitGroup // of the call
	onlyRecalls bool            // see Call.RecallOnce

	// The call sets these fields before the first question. arrival is nil if the call does not wait.
	// runInCaller: the call's goroutine runs the first question: see batcher.Lane.Do. cacheVersion is of the held cache.
	arrival      *Arrival
	runInCaller  bool
	cacheVersion uint64

	// under is the lease: nil for a BindTTL attempt that does not wait. NewAttempt sets it, and Moved changes it under mu.
	under atomic.Pointer[heartbeat.Lease]
	// inQueue: the attempt may be in the queue. beginEnqueue sets it; end and win read it.
	inQueue atomic.Bool
	// inStore: the store has queued the attempt. The queue writes and reads it, under its own mutex.
	inStore bool

	// mu guards the following fields.
	mu sync.Mutex

	// phase.go writes these fields. Everybody reads them.
	phase   phase
	leaving leaving

	// sent is when the running question was sent. Each question sets it (the first one without mu), and its answer reads it.
	sent time.Time

	// Each answer writes these fields: the holder (nil: unknown), when the question of that answer was sent, the queue position
	// (0: unknown), and whether there was one. The call reads them when it returns, for its error.
	seen      *store.Lock
	seenAt    time.Time
	position  int
	wasQueued bool

	// The times of checks. Answers and checks write these fields, and checkWhenDue reads them. hinted: the attempt should be
	// checked now. News may set it before the attempt is queued, or during a check.
	checkAt, checkedAt time.Time
	holderExpiry       time.Time // by the last answer
	hinted, checking   bool

	// repeated is the grant that other calls of the same request also have, or 0. The call sets it, and arrive resets it.
	repeated int64

	// The grant sets until, and the call reads it after the end: the end of its MaxHold (zero: none).
	until time.Time
	// The end sets these fields, and the call reads them after it. wonAt is when the grant was noticed. takeNext takes result back
	// if the call does not get the lock.
	result types.Grant
	wonAt  time.Time
	err    error

	// ended: the attempt is over and has ended its use of lease and queue. done is then closed; it is nil until a
	// caller waits.
	ended bool
	done  chan struct{}
}

// FixesID reports whether repeats of the request have the same attempt id at all sidecars. Repeats in a
// session do not need this, because the session knows its locks.
func FixesID(r *types.Request) bool { return r.Bind == types.BindTTL && r.RequestID != uuid.Nil }

// Lease is the lease under which the attempt waits, or asks for a session's lock.
func (b *Attempt) Lease() *heartbeat.Lease { return b.under.Load() }

// Key is the key that the attempt asks for.
func (b *Attempt) Key() string { return b.req.Key }

// Ref names the attempt to the store.
func (b *Attempt) Ref() store.Attempt { return store.Attempt{Key: b.req.Key, ID: b.id} }

// lasts is how long a lock keeps its key after the attempt's lease.
func (b *Attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }
