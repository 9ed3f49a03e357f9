package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

type modelSignal struct {
	key  string
	kind store.SignalKind
}

// modelEvent is what an instance must hear. The token of an EventAcquired is not known
// yet.
type modelEvent struct {
	by int
	store.Event
}

type modelWatch struct {
	by  int
	key string
}

type modelPast struct {
	token    int64
	released bool
}

// has reports whether an event was one of those that had happened.
func (p modelPast) has(e store.Event) bool {
	return e.Token < p.token || e.Token == p.token && (e.Kind == store.EventAcquired || p.released)
}

type modelStop struct{ reason *string }

// expire notes that a grant ended with its lease, which nobody was told yet.
func (k *modelLock) expire() {
	for by := range 2 {
		if k.expired[by] == nil {
			k.expired[by] = map[int64]bool{}
		}
		k.expired[by][k.token] = true
	}
}

// tell is about what those hear who watch a key.
func (m *model) tell(k *modelLock, e store.Event) {
	for by := range k.watchers {
		e.Key = k.key
		m.events = append(m.events, modelEvent{by, e})
	}
}

// signal asks a holder for something.
func (m *model) signal(g store.Signal) store.ClaimStatus {
	k := m.lock(g.Key)
	if !m.isHeld(k) || g.Token != 0 && g.Token != k.token {
		return store.UnknownToken
	}
	l := k.lease
	asked := l.renewed && !l.dead
	switch {
	case g.Kind == store.Stop:
		if k.stopping != nil && sameReason(k.stopping.reason, g.Reason) {
			return store.Holds
		}
		if k.stopping != nil {
			k.again[k.token] = append(k.again[k.token], g.Reason)
		}
		k.stopping = &modelStop{g.Reason}
		if !k.released {
			m.tell(k, store.Event{Kind: store.EventStopping, Token: k.token, Stopping: &store.Stopping{Reason: g.Reason}})
		}
	case !asked:
		if !k.released {
			k.expire()
		}
		m.pass(k)
	case m.kept(k):
		k.hold = time.Time{}
		m.hint(k)
	}
	if asked {
		if l.signals == nil {
			l.signals = map[modelSignal]*string{}
		}
		l.signals[modelSignal{g.Key, g.Kind}] = g.Reason
	}
	return store.Holds
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
