package attempt

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Calls next to each other in the queue are served here without a statement: see handOn. If the calls of several pods were queued one by one, they would alternate, and each grant would be
// a hand-off with a flush and news. Calls that leave the queue often come back. So after some have left, a new call waits until as many
// have come, or until MaxGather. All of them are queued with one statement, in their order. While other calls of this sidecar are
// in the queue, the key is busy anyway, so gathering costs no time.
//
// If no other sidecar has asked for the key for a while, nothing can alternate, and the present cohort serves each
// call that is queued. Then calls are not gathered.

const (
	// MaxGather limits the gathering: a call is gathered for min(MaxGather, half of the last call's wait). If no call left the queue for that time, the key
	// changes hands slowly, and calls are not gathered.
	MaxGather = 50 * time.Millisecond
	// If no call of the sidecar is in the queue or has the key, the key may be free soon. Then a call is gathered for
	// min(MaxGather/idleShare, a sixteenth of the last call's wait), so at most 2 ms.
	idleShare, idleWaitShare = 25, 8
	// aloneAfter is for how long calls are gathered after one of another sidecar was ahead of them.
	aloneAfter = 2 * MaxGather
)

// gathers returns how long this number of ready arrivals waits for others before they are queued.
func (aq *Acquirer) gathers(key string, ready int) time.Duration {
	if aq.inline { // its statements cost no round trip
		return 0
	}
	aq.Queue.mu.Lock()
	defer aq.Queue.mu.Unlock()
	l, now := aq.Queue.byKey[key], aq.clk.Now()
	if l == nil || ready >= l.left || l.alone != (time.Time{}) && now.Sub(l.alone) > aloneAfter {
		return 0
	}
	most := min(l.waited/2, MaxGather)
	if l.inStore == 0 && !l.holds {
		most = min(l.waited/2/idleWaitShare, MaxGather/idleShare)
	}
	if now.Sub(l.moved) < most {
		return most
	}
	return 0
}

// hurries reports whether the call's wait ends soon. Such a call is not gathered, because it could time out
// while it might get the lock in the queue.
func (b *Attempt) hurries() bool {
	return b.req.Wait > 0 && b.req.Wait-b.aq.clk.Now().Sub(b.began) < 2*MaxGather
}

// keyQueue counts the attempts for one key that are queued, or may be. It stays for a while after the last one.
type keyQueue struct {
	attempts int
	// inStore is how many of them are certainly in the store's queue.
	inStore int
	// left is how many have left the store's queue since another one was queued.
	left int
	// moved is when the last call left the store's queue, or when the store confirmed its release, if that was later. waited is how
	// long that call had waited. A newly queued call sets moved to zero, because then nothing is gathered.
	moved  time.Time
	waited time.Duration
	// holds: the last one that left got the key, and the store has not confirmed its release.
	holds bool
	// alone: since this time, each queued call had only calls of this sidecar ahead. Zero: the last queued call had another
	// sidecar's ahead, or none was queued yet.
	alone time.Time
}

// enterKey records that the attempt is about to be queued. The caller holds q.mu.
func (q *Queue) enterKey(b *Attempt) {
	l := q.byKey[b.req.Key]
	if l == nil {
		l = &keyQueue{}
		q.byKey[b.req.Key] = l
	}
	l.attempts++
	l.moved, l.left = time.Time{}, 0
}

// leaveKey records that the attempt has left the queue, and whether it holds the key now. The caller holds q.mu.
func (q *Queue) leaveKey(b *Attempt, holds bool) {
	key := b.req.Key
	l := q.byKey[key]
	if b.inStore {
		l.inStore--
		l.left++
		l.moved = q.clk.Now()
		l.waited = l.moved.Sub(b.began)
		l.holds = holds
	}
	if l.attempts--; l.attempts > 0 {
		return
	}
	time.AfterFunc(aloneAfter, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if l.attempts == 0 && q.byKey[key] == l {
			delete(q.byKey, key)
		}
	})
}

// holds reports whether a session got an exclusive lock by the attempt.
func (b *Attempt) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wonLocked() && b.req.Bind == types.BindSession && !b.req.Shared
}

// Freed must be called when the store has confirmed the release of an exclusive lock of a session that was in the queue.
// Only then can that session's call come back, so others wait for it a little longer.
func (aq *Acquirer) Freed(key string) {
	if aq.Queue.freed(key) {
		aq.arrivals.reconsider(key)
	}
}

// freed reports whether calls are gathered differently now.
func (q *Queue) freed(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.byKey[key]
	if l == nil || !l.holds {
		return false
	}
	l.holds = false
	if !l.moved.IsZero() {
		l.moved = q.clk.Now()
	}
	return true
}
