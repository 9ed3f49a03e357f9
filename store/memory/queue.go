package memory

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
	// since is a time on the space's clock.
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

func (q *queue) push(a *asker, now moment) *waiter {
	q.last++
	w := &waiter{asker: *a, order: q.last, since: now.at}
	q.line = append(q.line, w)
	if w.shared {
		q.shared++
	}
	switch {
	case q.index != nil:
		q.index[w.grant] = w
	case len(q.line) > indexAbove:
		q.index = make(map[store.AttemptID]*waiter, 2*len(q.line))
		for _, w := range q.line {
			q.index[w.grant] = w
		}
	}
	return w
}

func (q *queue) find(grant store.AttemptID) *waiter {
	if q.index != nil {
		return q.index[grant]
	}
	for _, w := range q.line {
		if w.grant == grant {
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
	delete(q.index, w.grant)
	if w.shared {
		q.shared--
	}
}
