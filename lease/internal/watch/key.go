package watch

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Event is what a stream is told, in the order of the key's grants. An event that was over before
// it was told may be missing.
type Event struct {
	Kind store.EventKind
	Key  string
	// Token is the grant that began, ended, or should stop.
	Token int64
	// Lock is who acquired it (EventAcquired). It is not held if that grant has ended already.
	Lock store.Lock
	// Outcome and Result are those of the release (EventReleased).
	Outcome store.ReleaseOutcome
	Result  []byte
	// Stopping is set by an EventStopping.
	Stopping *store.Stopping
}

type key struct {
	name    string
	streams map[*Stream]struct{}
	// watched: the store watches it. Keep sets this.
	watched bool

	// lookAt is when the key is read next, zero: never.
	lookAt time.Time
	pushes uint64      // how many came
	last   store.Event // the push of the newest state
	// found is what a read found at foundAt, if that must be confirmed.
	found   finding
	foundAt time.Time
}

type finding struct {
	some, held, expired bool
	token               int64
	shares              string // their tokens
}

type state struct {
	token    int64 // of the newest grant
	held     bool
	stopping *store.Stopping
	// shares are the shared holders, and whether they should stop; nil: it is not shared.
	shares shares
}

// push takes a push. It reports whether the key must be read to tell more.
func (k *key) push(e store.Event) (look bool) {
	k.pushes++
	k.found = finding{} // and a read that is under way may be too old to confirm anything
	if e.Token > k.last.Token || e.Token == k.last.Token && (ends(e) || !ends(k.last)) {
		k.last = e
	}
	for st := range k.streams {
		if st.joined && st.push(e) {
			look = true
		}
	}
	return look
}

func ends(e store.Event) bool { return e.Kind == store.EventReleased || e.Kind == store.EventExpired }

// push tells a stream what a push says. It reports whether a read must tell the rest.
func (st *Stream) push(e store.Event) (look bool) {
	was := &st.told
	if was.shares.has(e.Token) {
		st.pushShare(e)
		return false
	}
	switch {
	case e.Token < was.token || e.Token == was.token && (!was.held || was.shares != nil): // it was told already
	case ends(e):
		if e.Token > was.token {
			st.hear(Event{Kind: store.EventAcquired, Key: e.Key, Token: e.Token, Lock: store.Lock{Key: e.Key}})
		}
		if was.token = e.Token; was.shares == nil {
			st.told = state{token: e.Token}
		}
		st.hear(ended(e))
	case e.Token > was.token:
		return true
	case e.Kind == store.EventStopping && newStop(was.stopping, e.Stopping):
		was.stopping = e.Stopping
		st.hear(Event{Kind: e.Kind, Key: e.Key, Token: e.Token, Stopping: e.Stopping})
	}
	return false
}

func ended(e store.Event) Event {
	return Event{Kind: e.Kind, Key: e.Key, Token: e.Token, Outcome: e.Outcome, Result: e.Result}
}

func newStop(was, stop *store.Stopping) bool {
	if stop == nil || was == nil {
		return stop != nil
	}
	a, b := was.Reason, stop.Reason
	return a != b && (a == nil || b == nil || *a != *b)
}

// read returns the difference between what a stream knows and what a read found. Between two states
// in which the key is free there are no events.
func (s state) read(lock store.Lock) (next state, events []Event) {
	if lock.Shared {
		return s.readShares(&lock, false)
	}
	if s.shares != nil {
		events = s.shares.ended(&lock)
		s = state{token: s.token}
	}
	if lock.Held && lock.Holder.HoldPending && lock.Token == s.token {
		return s, events // a release was told, or will be when the hold (MinHold) is over
	}
	if !lock.Held && lock.Token == 0 { // the store has forgotten the last grant
		lock.Token = s.token
	}
	next = state{token: lock.Token, held: lock.Held, stopping: lock.Stopping}
	if lock.Held && (!s.held || lock.Token != s.token) {
		events = append(events, Event{Kind: store.EventAcquired, Key: lock.Key, Token: lock.Token, Lock: lock})
		s.stopping = nil
	}
	switch {
	case lock.Held && newStop(s.stopping, lock.Stopping):
		events = append(events, Event{Kind: store.EventStopping, Key: lock.Key, Token: lock.Token, Stopping: lock.Stopping})
	case s.held && lock.Expired:
		events = append(events, Event{Kind: store.EventExpired, Key: lock.Key, Token: s.token})
	case s.held && !lock.Held:
		events = append(events, Event{Kind: store.EventReleased, Key: lock.Key, Token: s.token})
	}
	return next, events
}

// mayTell reports whether what a read found may be told, or else when the next read may be.
func (k *key) mayTell(lock store.Lock, now time.Time) (yes bool, again time.Duration) {
	found := finding{true, lock.Held, lock.Expired, lock.Token, tokensOf(&lock)}
	switch {
	case !k.isNews(lock):
		k.found = finding{}
		return false, 0
	case lock.Held && !lock.Shared && lock.Token == k.last.Token && !ends(k.last): // a push announced it
		return true, 0
	case k.found != found:
		k.found, k.foundAt = found, now
	}
	again = k.foundAt.Add(settle).Sub(now)
	return again <= 0, again
}

func (k *key) isNews(lock store.Lock) bool {
	for st := range k.streams {
		if next, events := st.told.read(lock); st.joined && (len(events) > 0 || next.token < st.told.token) {
			return true
		}
	}
	return false
}

func (k *key) tell(lock store.Lock) {
	for st := range k.streams {
		if !st.joined {
			continue
		}
		var events []Event
		st.told, events = st.told.read(lock)
		for _, e := range events {
			st.hear(e)
		}
	}
}

func (k *key) waiting() (waiting []*Stream) {
	for st := range k.streams {
		if !st.joined {
			waiting = append(waiting, st)
		}
	}
	return waiting
}

// join makes a stream begin with a read. newer: pushes that came during the read may be newer. It
// reports whether the key must be read to tell them.
func (st *Stream) join(lock store.Lock, newer bool) (look bool) {
	st.lock, st.told, st.joined = lock, stateOf(&lock), true
	close(st.begun)
	return newer && st.push(st.key.last)
}
