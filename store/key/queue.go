package key

import (
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

func (q *queue) find(grant store.AttemptID) *waiter {
	if q.index != nil {
		return q.index[grant]
	}
	for _, w := range q.line {
		if w.Attempt == grant {
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
	for _, grant := range served {
		if w := r.queue.find(grant); w != nil {
			r.dequeue(w)
		}
	}
}

// dropGone removes waiters and watchers under dead leases, and reports whether it removed a waiter.
func (r *Row) dropGone() (left bool) {
	waiting := r.queue.len()
	r.queue.removeAll(func(w *waiter) bool { return w.lease.Dead() })
	for grant, k := range r.skipped {
		if k.lease.Dead() {
			delete(r.skipped, grant)
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
