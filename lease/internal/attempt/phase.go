package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// phase is how far an attempt has come. Only the functions of this file change it. What else its end needs is in end.go.
//
//	asking ──held, call waits──▶ arrived ──▶ enqueuing ──▶ queued ──must leave──▶ cancelling
//	  │          arrive             │ startEnqueue  │ toQueued* │       depart           │
//	  └─────────────────────────────┴─ over: won, or not ───────┴────────────────────────┘
//	                                   grantLocked, toOver, depart, loseLease             * toQueuedLocked
//
// An attempt whose call is not the first to arrive for its key begins with arrive: see arrivals. In asking, enqueuing and
// cancelling, a question is under way, and its answer, or news, decides what follows. In arrived and queued, the attempt can
// leave at once. From over there is no way back: a grant that comes later is handed back.
type phase uint8

const (
	asking phase = iota
	arrived
	enqueuing
	queued
	cancelling
	over
)

// leaving are the reasons why an attempt must leave the queue. They are never taken back.
type leaving uint8

const (
	// callerLeft: nobody waits for the outcome, so the attempt hands back what it wins.
	callerLeft leaving = 1 << iota
	// timeUp: the wait of its call is over. If it was granted meanwhile, it has won.
	timeUp
	// recallOver: the attempt only recalls the key, and the other sidecar has answered, or had its time since the attempt was queued.
	recallOver
	// leaseLost: the lease of its queue position was lost. Only attempts with BindTTL go on after that, to learn their outcome.
	leaseLost
)

// ErrAttemptLost ends an attempt whose lease or queue position is lost. The call may try again.
var ErrAttemptLost = errors.New("the lease or the place in line is gone")

// arrive begins the wait, because another holder has the key, or other calls came before. It reports whether the attempt
// must leave instead.
func (b *Attempt) arrive() (leaves bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.phase = arrived
	b.repeated = 0 // another holder has the key, so the repeated grant is over
	return b.leaving != 0
}

// startEnqueue begins the question for a queue position. It returns false if the attempt has left.
func (b *Attempt) startEnqueue() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != arrived {
		return false
	}
	b.phase, b.sent = enqueuing, b.aq.clk.Now()
	return true
}

// toQueuedLocked records that the store has queued the attempt. It returns false if the attempt is over: news came before the
// answer, or the lease was lost. The caller holds b.mu.
func (b *Attempt) toQueuedLocked() bool {
	if b.phase == over {
		return false
	}
	b.phase, b.wasQueued = queued, true
	return true
}

// departure is what follows for an attempt that must leave: see the table in end.go.
type departure uint8

const (
	// later: the answer to the question under way decides.
	later departure = iota
	// gone: the attempt is over, and has not asked for a queue position.
	gone
	// toCancel: the store must cancel the queue position.
	toCancel
	// hasWon: the attempt has won before.
	hasWon
	// hadLeft: the attempt was over before, and has not won.
	hadLeft
)

// depart records why an attempt must leave, and moves it. A queued one is not over before the store has confirmed the cancel, because
// it may have been granted.
func (b *Attempt) depart(why leaving) departure {
	b.mu.Lock()
	defer b.mu.Unlock()
	if why == timeUp && b.onlyRecalls && (b.phase == enqueuing || b.phase == queued) {
		return later // its time begins when it is queued: see endRecall
	}
	b.leaving |= why
	switch b.phase {
	case arrived:
		b.phase, b.err = over, b.whyLeftLocked()
		return gone
	case queued:
		b.phase, b.sent = cancelling, b.aq.clk.Now()
		return toCancel
	case over:
		if b.wonLocked() {
			return hasWon
		}
		return hadLeft
	default:
		return later
	}
}

// whyLeftLocked is the error of an attempt without a queue position. The caller holds b.mu.
func (b *Attempt) whyLeftLocked() error {
	if b.leaving&(timeUp|recallOver) != 0 {
		return errTimeUp
	}
	return ErrAttemptLost
}

// leaseLoss is what follows for an attempt whose lease was lost.
type leaseLoss uint8

const (
	// untouched: the attempt is over, or was moved to another lease.
	untouched leaseLoss = iota
	// mayHaveWon: a bind:ttl lock outlives the lease, so the attempt first learns its outcome.
	mayHaveWon
	// lostAll: the attempt is over. What the store may still have of it ends with the revocation of the lease.
	lostAll
)

// loseLease ends the use of a lost lease.
func (b *Attempt) loseLease(l *heartbeat.Lease) leaseLoss {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.Lease() != l || b.phase == over:
		return untouched
	case b.req.Bind == types.BindTTL:
		b.leaving |= leaseLost
		return mayHaveWon
	default:
		b.phase, b.err = over, ErrAttemptLost
		return lostAll
	}
}

// grantLocked ends the attempt with a grant. err is not nil if the call does not get it. The caller holds b.mu.
func (b *Attempt) grantLocked(g types.Grant, now time.Time, err error) {
	b.phase, b.result, b.wonAt, b.err = over, g, now, err
}

// wonLocked reports whether the attempt is over, and its call has the grant. The caller holds b.mu.
func (b *Attempt) wonLocked() bool { return b.phase == over && b.err == nil }

// hasWon is wonLocked.
func (b *Attempt) hasWon() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wonLocked()
}

// toOver ends the attempt without a grant: [Attempt.end] follows. It returns the previous phase, and whether that was not over.
func (b *Attempt) toOver(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}
