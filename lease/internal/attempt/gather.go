package attempt

import "time"

// The sidecar serves calls that stand directly behind each other in the store's queue without a statement for
// each: see cohort.go. If the calls of several pods came back one by one, they would stand between each other,
// and each grant would be a hand-off with a flush and news. So a call is gathered with those that come after
// it, if calls of this sidecar are still in the queue ahead of it and one of them has just left it. They are
// queued together, in their order. Nobody misses a grant by that, because the line is not empty meanwhile.

const (
	// MaxGather is how long a call is gathered at most. It is gathered for half of the time that the last one
	// has waited, if that is less. If none left the queue for so long, the key does not change hands quickly,
	// and no call is gathered.
	MaxGather = 50 * time.Millisecond
	// gatherShare: the gathered calls are queued when they are so many times as many as those that are ahead.
	// So they are in the queue before it is empty.
	gatherShare = 3
)

// line counts the attempts for one key that are queued, or may be.
type line struct {
	attempts int
	// inStore is how many certainly are in the store's queue.
	inStore int
	// moved is when the last one left, whose call had waited for so long. It is zero if another was queued since:
	// the next is to be directly behind that.
	moved  time.Time
	waited time.Duration
}

// gathers is how long so many ready arrivals wait for others before they are queued.
func (aq *Acquirer) gathers(key string, ready int) time.Duration {
	if aq.inline { // its statements cost nothing
		return 0
	}
	aq.queue.mu.Lock()
	defer aq.queue.mu.Unlock()
	l := aq.queue.byKey[key]
	if l == nil || ready >= gatherShare*l.inStore {
		return 0
	}
	if most := min(l.waited/2, MaxGather); aq.clk.Now().Sub(l.moved) < most {
		return most
	}
	return 0
}

// hurries reports whether the call's wait is over soon. It is not gathered, because it could time out while
// others would have left the queue to it.
func (b *Attempt) hurries() bool {
	return b.req.Wait > 0 && b.req.Wait-b.aq.clk.Now().Sub(b.began) < 2*MaxGather
}

// joinLine notes that the attempt is about to be queued. q.mu is held.
func (q *queue) joinLine(b *Attempt) {
	l := q.byKey[b.req.Key]
	if l == nil {
		l = &line{}
		q.byKey[b.req.Key] = l
	}
	l.attempts++
	l.moved = time.Time{}
}

// leftLine notes that the attempt has left the line. q.mu is held.
func (q *queue) leftLine(b *Attempt) {
	l := q.byKey[b.req.Key]
	if b.inStore {
		l.inStore--
		l.moved = q.clk.Now()
		l.waited = l.moved.Sub(b.began)
	}
	if l.attempts--; l.attempts == 0 {
		delete(q.byKey, b.req.Key)
	}
}

// queued notes that the store has queued an attempt, which is to be checked then.
func (q *queue) queued(b *Attempt, checkAt time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.has(b) {
		b.inStore = true
		q.byKey[b.req.Key].inStore++
	}
	q.changedLocked(checkAt)
}
