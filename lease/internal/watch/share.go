package watch

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

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

// tellNew sends the shares that are newer than what the streams know. The rest must be confirmed.
func (k *key) tellNew(lock *store.Lock) {
	for st := range k.streams {
		if !st.joined {
			continue
		}
		var events []Event
		st.told, events = st.told.readShares(lock, true)
		for _, e := range events {
			st.hear(e)
		}
	}
}
