package key

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// indexAbove is the length above which a queue has an index. Shorter queues are faster without one.
const indexAbove = 16

type waiter struct {
	asker
	order int64
	// since is when the waiter came, in microseconds since 1970. It is only shown.
	since int64
}

// queue contains the waiters of a key. The zero queue is empty.
type queue struct {
	line []*waiter
	last int64
	// shared counts the waiters for shares.
	shared int
	index  map[store.AttemptID]*waiter // nil in a short queue
}

func (q *queue) len() int { return len(q.line) }

func (q *queue) first() *waiter {
	if len(q.line) == 0 {
		return nil
	}
	return q.line[0]
}

func (q *queue) push(a *asker, now Moment) *waiter {
	q.last++
	w := &waiter{asker: *a, order: q.last, since: now.Wall.UnixMicro()}
	q.add(w)
	return w
}

func (q *queue) add(w *waiter) {
	q.line = append(q.line, w)
	if w.Shared {
		q.shared++
	}
	switch {
	case q.index != nil:
		q.index[w.Attempt] = w
	case len(q.line) > indexAbove:
		q.index = make(map[store.AttemptID]*waiter, 2*len(q.line))
		for _, w := range q.line {
			q.index[w.Attempt] = w
		}
	}
}

func (q *queue) find(id store.AttemptID) *waiter {
	if q.index != nil {
		return q.index[id]
	}
	for _, w := range q.line {
		if w.Attempt == id {
			return w
		}
	}
	return nil
}

// position is a waiter's queue position, 1 for the first.
func (q *queue) position(w *waiter) int { return q.at(w) + 1 }

func (q *queue) at(w *waiter) int {
	i, _ := slices.BinarySearchFunc(q.line, w.order, func(w *waiter, order int64) int {
		return cmp.Compare(w.order, order)
	})
	return i
}

func (q *queue) remove(w *waiter) {
	q.forget(w)
	if w == q.line[0] { // the usual case: no other element moves
		q.line[0] = nil
		q.line = q.line[1:]
		return
	}
	i := q.at(w)
	q.line = slices.Delete(q.line, i, i+1)
}

func (q *queue) removeAll(unwanted func(*waiter) bool) {
	q.line = slices.DeleteFunc(q.line, func(w *waiter) bool {
		if !unwanted(w) {
			return false
		}
		q.forget(w)
		return true
	})
}

func (q *queue) forget(w *waiter) {
	delete(q.index, w.Attempt)
	if w.Shared {
		q.shared--
	}
}

func (r *Row) enqueue(a *asker, now Moment) *waiter {
	if a.Shared {
		r.limit = a.Limit
	}
	return r.queue.push(a, now)
}

func (r *Row) dequeue(w *waiter) {
	r.queue.remove(w)
	r.tidy()
}

// dropServed removes waiters that got the lock from their sidecar.
func (r *Row) dropServed(served []store.AttemptID) {
	for _, id := range served {
		if w := r.queue.find(id); w != nil {
			r.dequeue(w)
		}
	}
}

// dropGone removes waiters and watchers under dead leases, and reports whether it removed a waiter.
func (r *Row) dropGone() (left bool) {
	waiting := r.queue.len()
	r.queue.removeAll(func(w *waiter) bool { return w.lease.Dead() })
	for id, k := range r.skipped {
		if k.lease.Dead() {
			delete(r.skipped, id)
		}
	}
	for name, w := range r.watchers {
		if w.lease.Dead() {
			delete(r.watchers, name)
		}
	}
	r.tidy()
	return r.queue.len() < waiting
}

// tidy frees empty containers.
func (r *Row) tidy() {
	if r.queue.len() == 0 {
		r.queue = queue{last: r.queue.last} // the order continues, because readers page by it
	}
	if len(r.skipped) == 0 {
		r.skipped = nil
	}
	if len(r.watchers) == 0 {
		r.watchers = nil
	}
}

// Check returns what became of a waiter.
func (o *Op) Check(r *Row, a store.Attempt) (answer store.Answer) {
	if r.queue.find(a.ID) != nil {
		o.Settle(r) // may hand the key to this waiter, or find its lease dead
	}
	if w := r.queue.find(a.ID); w != nil {
		if !w.lease.Dead() {
			r.queued(&answer, w, o.Now)
			return answer
		}
		r.dequeue(w) // its lease died just now
		o.letIn(r)
	}
	return o.outcome(r, a)
}

// Cancel takes a waiter out of the queue.
func (o *Op) Cancel(r *Row, a store.Attempt) store.Answer {
	place := o.leave(r, a.ID)
	found := o.outcome(r, a)
	if k := r.skipped[a.ID]; k != nil && !o.forgetSkip(r, k) && found.Outcome == store.Skipped {
		found = store.Answer{Outcome: store.Gone} // the result belongs to the other instance
	}
	found.Position = place
	return found
}

// Withdraw frees what an attempt holds or waits for. Afterwards the attempt is Gone.
func (o *Op) Withdraw(r *Row, a store.Attempt) store.Answer {
	o.forgetSkip(r, r.skipped[a.ID])
	o.leave(r, a.ID)
	switch h := r.attempt(a.ID); {
	case h == nil || h.lease.Dead() && !h.onHold(o.Now) || !o.mayBeUndelivered(h):
	case h.lease.Alive(o.Now):
		o.released(r, h, store.NoOutcome, nil)
		o.free(r, h, "")
	default:
		o.lapse(r, h, "")
	}
	return store.Answer{Outcome: store.Gone}
}

// leave removes a waiter from the queue and returns its position. It leaves a waiter of another instance.
func (o *Op) leave(r *Row, id store.AttemptID) (place int) {
	w := r.queue.find(id)
	if w == nil || !w.by.is(o.By) && !w.lease.Dead() {
		return 0
	}
	place = r.queue.position(w)
	r.dequeue(w)
	o.letIn(r)
	return place
}

// outcome answers an attempt that is not in the queue. A skipped waiter may have been repeated by an Enqueue.
func (o *Op) outcome(r *Row, a store.Attempt) (answer store.Answer) {
	switch held := r.heldBy(a.ID, o.Now); {
	case held != nil && a.Undelivered:
		held.granted(&answer, o.Now)
		return answer
	case held != nil:
		o.grantedAgain(held, &answer)
		return answer
	}
	if k := r.skipped[a.ID]; k != nil {
		return k.answer()
	}
	return store.Answer{Outcome: store.Gone}
}

type skip struct {
	*waiter
	result []byte // never written to
}

func (k *skip) answer() store.Answer {
	return store.Answer{Outcome: store.Skipped, Result: k.result}
}

// skipWaiters removes waiters with skip from the queue and notifies them. The row keeps them until they are
// cancelled or their leases die.
func (o *Op) skipWaiters(r *Row, result []byte) {
	result = bytes.Clone(result)
	r.queue.removeAll(func(w *waiter) bool {
		if !w.Skip {
			return false
		}
		k := &skip{waiter: w, result: result}
		r.addSkip(k)
		o.tell(r, w, k.answer())
		return true
	})
	r.tidy()
}

func (r *Row) addSkip(k *skip) {
	if r.skipped == nil {
		r.skipped = map[store.AttemptID]*skip{}
	}
	r.skipped[k.Attempt] = k
}

func (o *Op) tellSkipped(r *Row) {
	for _, k := range r.skipped {
		if r.heldBy(k.Attempt, o.Now) == nil {
			o.tell(r, k.waiter, k.answer())
		}
	}
}

// forgetSkip deletes a skipped waiter if the instance made it.
func (o *Op) forgetSkip(r *Row, k *skip) (forgotten bool) {
	if k == nil || !k.by.is(o.By) {
		return false
	}
	delete(r.skipped, k.Attempt)
	r.tidy()
	return true
}
