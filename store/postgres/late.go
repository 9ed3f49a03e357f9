package postgres

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// lateMax is the number of attempts that are remembered one by one.
const lateMax = 4096

// late contains the attempts of which a statement was not answered, and until when, by the database's clock, it may be
// carried out: see What comes too late in doc.go. Withdrawals and cancels count, too: a repeat of the request has the
// same attempt id, and must not lose to them what it got.
type late struct {
	mu    sync.Mutex
	until map[store.AttemptID]time.Time
	// others is this time for all attempts that are not in until.
	others time.Time
}

// noteLate records the attempts of an operation if it failed with an unknown outcome.
func (o *operation) noteLate(err error, attempts int, id func(int) store.AttemptID) {
	if store.OutcomeUnknown(err) {
		o.late.note(attempts, id, o.notAfter)
	}
}

func (l *late) note(attempts int, id func(int) store.AttemptID, notAfter time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until)+attempts > lateMax {
		for _, until := range l.until {
			l.others = later(l.others, until)
		}
		l.until = nil
	}
	if l.until == nil {
		l.until = make(map[store.AttemptID]time.Time)
	}
	for i := range attempts {
		l.until[id(i)] = later(l.until[id(i)], notAfter)
	}
}

// canFollow reports whether a statement of an attempt may be carried out after one that began at this time by the
// database's clock. If not, the attempt is forgotten.
func (l *late) canFollow(id store.AttemptID, at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// It may be among the others, too, if it was noted before they were put together: its limits can go back with the clock.
	if at.Before(later(l.until[id], l.others)) {
		return true
	}
	delete(l.until, id)
	return false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
