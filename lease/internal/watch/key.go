package watch

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Event is what a stream receives, in the order of the key's grants. An event may be omitted if it was over
// before it could be sent.
type Event struct {
	Kind store.EventKind
	Key  string
	// Token is the grant that began, ended, or should stop.
	Token int64
	// Lock shows the new holder (EventAcquired). It is not held if that grant has already ended.
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
	// watched: the store watches the key. Keep sets this.
	watched bool

	// lookAt is when the key is read next. Zero means never.
	lookAt time.Time
	pushes uint64      // number of pushes
	last   store.Event // the push with the newest state
	// found is the result of a read at foundAt that must be confirmed by a second read.
	found   finding
	foundAt time.Time
}

type finding struct {
	some, held, expired bool
	token               int64
	shares              string // the tokens of the shares
}

type state struct {
	token    int64 // of the newest grant
	held     bool
	stopping *store.Stopping
	// shares are the shared holders with their requests to stop; nil: the key is not shared.
	shares shares
}

// push processes a push. It reports whether the key must be read for further details.
func (k *key) push(e store.Event) (look bool) {
	k.pushes++
	k.found = finding{} // a read that is under way may be too old to confirm anything
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

// push sends a stream the event of a push. It reports whether a read must provide the rest.
func (st *Stream) push(e store.Event) (look bool) {
	was := &st.told
	if was.shares.has(e.Token) {
		st.pushShare(e)
		return false
	}
	switch {
	case e.Token < was.token || e.Token == was.token && (!was.held || was.shares != nil): // the stream knows it already
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

// read returns the difference between what a stream knows and what a read found. If the key is free in both
// states, there are no events.
func (s state) read(lock store.Lock) (next state, events []Event) {
	if lock.Shared {
		return s.readShares(&lock, false)
	}
	if s.shares != nil {
		events = s.shares.ended(&lock)
		s = state{token: s.token}
	}
	if lock.Held && lock.Holder.HoldPending && lock.Token == s.token {
		return s, events // the release was sent already, or will be at the end of the hold (MinHold)
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

// mayTell reports whether the result of a read may be sent, or otherwise when the next read is due.
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

// join makes a stream begin with a read. newer: pushes that came during the read may be newer. It reports
// whether the key must be read for these.
func (st *Stream) join(lock store.Lock, newer bool) (look bool) {
	st.lock, st.told, st.joined = lock, stateOf(&lock), true
	close(st.begun)
	return newer && st.push(st.key.last)
}
