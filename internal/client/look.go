package client

import (
	"time"

	"github.com/locksidecar/locksidecar/internal/deadlock"
)

// Look collects the keys with waiting calls, and their holders, for the search of deadlocks. It ignores other locks.
// The waiting calls come first.
type Look struct {
	// since makes it ignore calls and locks that did not exist then; zero: none.
	Since time.Time
	Keys  []deadlock.Key
	at    map[string]int // indexes of keys
}

func (l *Look) old(age int64) bool { return l.Since.IsZero() || ms(age) >= time.Since(l.Since) }

// AddWaiter adds a waiting call.
func (l *Look) AddWaiter(w *Waiter) {
	n, known := l.at[w.Key]
	if !known {
		if l.at == nil {
			l.at = map[string]int{}
		}
		n = len(l.Keys)
		l.at[w.Key] = n
		l.Keys = append(l.Keys, deadlock.Key{Name: w.Key})
	}
	if !l.old(w.WaitingMS) {
		return
	}
	c := deadlock.Call{Party: w.Party(), Shared: w.Mode == ModeShared, For: ms(w.WaitingMS)}
	if w.Limit != nil {
		c.Limit = *w.Limit
	}
	l.Keys[n].Calls = append(l.Keys[n].Calls, c)
}

// WaitedFor reports whether a call waits for a key.
func (l *Look) WaitedFor(key string) bool {
	_, known := l.at[key]
	return known
}

// AddLock adds the holders of a lock. A kept lock says nothing about who holds it: perhaps nobody, or another session of the same
// sidecar. It is not part of a circle then: its sidecar is told that a call waits for it, and if a session has it, names that one.
func (l *Look) AddLock(lock *Lock) {
	n, known := l.at[lock.Key]
	if !known || lock.Kept {
		return
	}
	for i := range lock.Holders {
		l.held(n, &lock.Holders[i].Holder, true)
	}
	if lock.Holder != nil && lock.Mode != ModeShared {
		l.held(n, lock.Holder, false)
	}
}

func (l *Look) held(n int, h *Holder, shared bool) {
	if l.old(h.HeldMS) {
		hold := deadlock.Hold{Party: h.Party(), Shared: shared, For: ms(h.HeldMS)}
		l.Keys[n].Holds = append(l.Keys[n].Holds, hold)
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Party is the holder, for the search of deadlocks.
func (h *Holder) Party() deadlock.Party { return partyOf(h.Pod, h.Session, h.Owner) }

// Party is the caller, for the search of deadlocks.
func (w *Waiter) Party() deadlock.Party { return partyOf(w.Pod, w.Session, w.Owner) }

func partyOf(pod string, session, owner *string) deadlock.Party {
	if session == nil {
		return deadlock.Party{}
	}
	p := deadlock.Party{Pod: pod, Session: *session}
	if owner != nil {
		p.Owner = *owner
	}
	return p
}
