package lease

import (
	"context"
	"errors"
	"sync"

	"github.com/locksidecar/locksidecar/store"
)

// maxWatchedKeys is the most keys that are watched here at a time: all of them are
// read as often as leases are renewed.
const maxWatchedKeys = 1000

// Watch tells hear what happens to a key, until stop is called. It returns the key as
// it was when the watch took effect; what hear is told came after. hear must not block
// and must not call back; it is called from one goroutine at a time, perhaps before
// Watch returns, and not after stop has. Errors: [LimitError], [ErrCallerLeft],
// [ErrDraining], and those of the store.
func (m *Manager) Watch(ctx context.Context, s *Session, key string, hear func(Event)) (v View, stop func(), err error) {
	if m.isDraining() {
		return View{}, nil, ErrDraining
	}
	if _, err := store.As[store.Watcher](m.st, store.FeatureEvents); err != nil {
		return View{}, nil, err
	}
	st := &stream{hear: hear}
	w, err := m.watches.add(key, st)
	if err != nil {
		return View{}, nil, err
	}
	stop = func() { m.watches.remove(w, st) }
	select {
	case <-w.watched:
		err = w.err
	case <-ctx.Done():
		err = errors.Join(ErrCallerLeft, context.Cause(ctx))
	case <-m.draining:
		err = ErrDraining
	}
	if err == nil {
		v, err = m.Get(ctx, s, key, true)
	}
	if err != nil {
		stop()
		return View{}, nil, err
	}
	w.begin(st, v.Lock)
	return v, stop, nil
}

// stream is one who watches a key. It is told what is news to it: what came after
// the view that it began with, each grant and each end once, in the order of the
// grants. So it does not matter in which way, and how often, something is heard.
type stream struct {
	hear func(Event)

	mu       sync.Mutex
	begun    bool
	early    []tiding // heard before it began
	stopped  bool
	token    int64 // of the last grant that it knows of
	held     bool  // and that has not ended
	ended    bool  // and that can not turn out to be alive
	stopping *store.Stopping
}

// tiding is an event, or what a read means as one.
type tiding struct {
	Event
	token int64
	// read: from a read, so what ended may only be late with its renewal.
	read bool
}

// begin gives a stream the view that it begins with, and what came since.
func (st *stream) begin(lock store.Lock) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.begun = true
	st.token, st.held, st.ended, st.stopping = lock.Token, lock.Held, !lock.Held && !lock.Expired, lock.Stopping
	for _, t := range st.early {
		st.notifyLocked(t)
	}
	st.early = nil
}

// notify brings a tiding to a stream.
func (st *stream) notify(t tiding) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.begun:
		st.notifyLocked(t)
	case !t.read && len(st.early) < maxTidings: // what is too much shows in the next read
		st.early = append(st.early, t)
	}
}

func (st *stream) notifyLocked(t tiding) {
	if !st.stopped && st.newsLocked(t) {
		st.hear(t.Event)
	}
}

// newsLocked takes a tiding over and reports whether it is news.
func (st *stream) newsLocked(t tiding) bool {
	switch t.Kind {
	case store.EventAcquired:
		if t.token <= st.token && (!t.read || !st.alive(t.Lock)) {
			return false
		}
		st.token, st.held, st.ended, st.stopping = t.token, true, false, nil
		return true
	case store.EventStopping:
		if t.token < st.token || t.token == st.token && !st.held {
			return false
		}
		if t.token == st.token && st.stopping != nil && sameReason(st.stopping.Reason, t.Stopping.Reason) {
			return false
		}
		st.token, st.held, st.ended, st.stopping = t.token, true, false, t.Stopping
		return true
	default:
		return st.endLocked(t)
	}
}

// endLocked takes over that a grant has ended.
func (st *stream) endLocked(t tiding) bool {
	if t.read && t.token == 0 { // so long ago that it is forgotten
		t.token = st.token
	}
	if t.token < st.token {
		return false
	}
	was, later := st.held, t.token > st.token
	st.token, st.held, st.stopping = t.token, false, nil
	st.ended = !t.read || t.Kind != store.EventExpired || st.ended && !later && !was
	return was || later && !t.read
}

// differs reports whether what a read found is news to the stream.
func (st *stream) differs(lock store.Lock) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !st.begun || st.stopped:
		return false
	case !lock.Held:
		return st.held && (lock.Token == 0 || lock.Token >= st.token)
	case lock.Token != st.token:
		return lock.Token > st.token
	case st.held:
		return lock.Stopping != nil && (st.stopping == nil || !sameReason(st.stopping.Reason, lock.Stopping.Reason))
	default:
		return st.alive(lock)
	}
}

// alive reports whether a holder that seemed to have expired has renewed in time
// after all.
func (st *stream) alive(lock store.Lock) bool {
	return lock.Token == st.token && !st.held && !st.ended && !lock.Holder.HoldPending
}

// stop makes the stream be told nothing any more. It reports whether it was not
// stopped before.
func (st *stream) stop() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	was := st.stopped
	st.stopped = true
	return !was
}
