package watch

import (
	"maps"
	"slices"
	"strconv"
	"strings"
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

// tell sends the streams the difference between what they know and a later state, as read finds it.
func (k *key) tell(read func(state) (state, []Event)) {
	for st := range k.streams {
		if !st.joined {
			continue
		}
		var events []Event
		st.told, events = read(st.told)
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

// shares are the shared holders that a stream knows, by token, with their requests to stop.
type shares map[int64]*store.Stopping

func (s shares) has(token int64) bool {
	_, has := s[token]
	return has
}

func stateOf(lock *store.Lock) state {
	if !lock.Shared {
		return state{token: lock.Token, held: lock.Held, stopping: lock.Stopping}
	}
	next, _ := state{}.readShares(lock, false)
	return next
}

// tokensOf names the holders of a shared lock, to compare two reads.
func tokensOf(lock *store.Lock) string {
	var b strings.Builder
	for _, share := range lock.Holders {
		b.WriteString(strconv.FormatInt(share.Token, 36))
		b.WriteByte(' ')
	}
	return b.String()
}

// pushShare sends a stream the event of a push for a share that it knows.
func (st *Stream) pushShare(e store.Event) {
	was := &st.told
	switch {
	case ends(e):
		was.shares = maps.Clone(was.shares)
		if delete(was.shares, e.Token); len(was.shares) == 0 {
			st.told = state{token: was.token}
		}
		st.hear(ended(e))
	case e.Kind == store.EventStopping && newStop(was.shares[e.Token], e.Stopping):
		was.shares = maps.Clone(was.shares)
		was.shares[e.Token] = e.Stopping
		st.hear(Event{Kind: e.Kind, Key: e.Key, Token: e.Token, Stopping: e.Stopping})
	}
}

// ended returns the ends of shares that a read no longer finds, because the key is free or exclusive.
func (s shares) ended(lock *store.Lock) (events []Event) {
	for _, token := range slices.Sorted(maps.Keys(s)) {
		kind := store.EventReleased
		if lock.Expired && token == lock.Token {
			kind = store.EventExpired
		}
		events = append(events, Event{Kind: kind, Key: lock.Key, Token: token})
	}
	return events
}

// readShares is read for a shared lock. With onlyNew, it does not change what the stream already knows.
func (s state) readShares(lock *store.Lock, onlyNew bool) (next state, events []Event) {
	known := s.shares
	if s.held && known == nil { // it was exclusive, and may have been downgraded
		known = shares{s.token: s.stopping}
	}
	next = state{token: s.token, held: true, shares: shares{}}
	var begun []Event
	for i := range lock.Holders {
		share := &lock.Holders[i]
		stop, has := known[share.Token]
		switch {
		case !has && (share.HoldPending || onlyNew && share.Token <= s.token): // it has ended, or a second read will confirm it
			continue
		case !has:
			begun = append(begun, Event{Kind: store.EventAcquired, Key: lock.Key, Token: share.Token, Lock: ofShare(lock, share)})
		}
		if newStop(stop, share.Stopping) {
			begun = append(begun, Event{Kind: store.EventStopping, Key: lock.Key, Token: share.Token, Stopping: share.Stopping})
		}
		next.shares[share.Token] = share.Stopping
		next.token = max(next.token, share.Token)
	}
	for _, token := range slices.Sorted(maps.Keys(known)) {
		switch {
		case next.shares.has(token):
		case onlyNew || !isShown(lock, token):
			next.shares[token] = known[token]
		case s.shares != nil: // as with exclusive holders: no event if another share has followed
			events = append(events, Event{Kind: store.EventReleased, Key: lock.Key, Token: token})
		}
	}
	if len(next.shares) == 0 { // the key has only pending holds
		next = state{token: next.token}
	}
	return next, append(events, begun...)
}

// isShown reports whether a lock would show the holder with this token. It shows only the first holders.
func isShown(lock *store.Lock, token int64) bool {
	shown := len(lock.Holders)
	return lock.HoldersCount <= shown || shown > 0 && token < lock.Holders[shown-1].Token
}

// ofShare returns a shared lock that shows only one of its holders.
func ofShare(lock *store.Lock, share *store.Share) store.Lock {
	own := *lock
	own.Token, own.Holder, own.Stopping, own.Holders = share.Token, share.Holder, share.Stopping, []store.Share{*share}
	return own
}

// announced reports whether a push announced a share that a read found.
func (k *key) announced(lock *store.Lock) bool {
	return lock.Shared && !ends(k.last) && slices.ContainsFunc(lock.Holders, func(s store.Share) bool { return s.Token == k.last.Token })
}
