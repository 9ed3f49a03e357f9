package storetest

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

type modelSignal struct {
	key   string
	token int64
	kind  store.SignalKind
}

// modelEvent is an expected event of a grant, whose token may not be known yet.
type modelEvent struct {
	by int
	of *modelHold
	store.Event
}

type modelWatch struct {
	by  int
	key string
}

type modelPast struct {
	token int64 // the highest token
	// held contains the grants that had not ended.
	held map[int64]bool
}

func (k *modelLock) past() modelPast {
	p := modelPast{k.last, map[int64]bool{}}
	for _, h := range k.holds() {
		p.held[h.token] = !h.released
	}
	return p
}

// has reports whether an event had happened.
func (p modelPast) has(e store.Event) bool {
	return e.Token <= p.token && (e.Kind == store.EventAcquired || !p.held[e.Token])
}

type modelStop struct{ reason *string }

// expire notes that a grant expired, and that this is not reported yet.
func (k *modelLock) expire(h *modelHold) {
	k.ends[h.token] = store.Expired
	for by := range 2 {
		if k.expired[by] == nil {
			k.expired[by] = map[int64]bool{}
		}
		k.expired[by][h.token] = true
	}
}

// tell notes an event for all watchers of a key.
func (m *model) tell(k *modelLock, of *modelHold, e store.Event) {
	for by := range k.watchers {
		e.Key = k.key
		m.events = append(m.events, modelEvent{by, of, e})
	}
}

// signal stops or breaks one holder, or all if the signal has no token.
func (m *model) signal(g store.Signal) store.ClaimStatus {
	k := m.lock(g.Key)
	status, earlier := store.UnknownToken, len(m.hints)
	holdEnded := false
	for _, h := range k.holds() {
		if m.keeps(h) && (g.Token == 0 || g.Token == h.token) {
			holdEnded = m.signalOne(k, h, g) || holdEnded
			status = store.Holds
		}
	}
	// A break ends grants one after the other, and the end of one may show that the lease of another is dead. If that one's hold is broken, too, nobody waits for
	// its end any more.
	if !holdEnded && !slices.ContainsFunc(k.holds(), m.onHold) {
		ofDeaths := slices.DeleteFunc(slices.Clone(m.hints[earlier:]), func(w modelAsker) bool { return w.Key == k.key })
		m.hints = append(m.hints[:earlier], ofDeaths...)
	}
	return status
}

// signalOne sends a request to one holder. It reports whether the request has ended a hold, which the waiters are told.
func (m *model) signalOne(k *modelLock, h *modelHold, g store.Signal) (holdEnded bool) {
	l := h.lease
	asked := l.renewed && !l.dead
	switch {
	case g.Kind == store.Stop:
		if h.stopping != nil && sameReason(h.stopping.reason, g.Reason) {
			return false
		}
		if h.stopping != nil {
			k.again[h.token] = append(k.again[h.token], g.Reason)
		}
		h.stopping = &modelStop{g.Reason}
		if !h.released {
			m.tell(k, h, store.Event{Kind: store.EventStopping, Stopping: &store.Stopping{Reason: g.Reason}})
		}
	case !asked:
		if !h.released {
			k.expire(h)
		}
		m.pass(k, h)
	case m.onHold(h):
		h.hold = time.Time{}
		m.hint(k)
		holdEnded = true
	}
	if asked {
		if l.signals == nil {
			l.signals = map[modelSignal]*string{}
		}
		l.signals[modelSignal{g.Key, h.token, g.Kind}] = g.Reason
	}
	return holdEnded
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
