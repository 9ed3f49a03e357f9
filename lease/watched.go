package lease

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// maxTidings is the most that waits to be told of a key. What is too much is
// dropped, and the key is read.
const maxTidings = 256

// watched is a key that is watched here, by one stream or more. What is heard of it
// is told by one goroutine, one after the other: to tell who acquired it, it must be
// read, and what comes meanwhile waits.
type watched struct {
	m   *Manager
	key string

	// watched is closed when the store has answered for the first time; err is set
	// before.
	watched chan struct{}
	err     error

	mu        sync.Mutex
	streams   map[*stream]struct{}
	pending   []fact
	notifying bool
	// changes counts what was heard, but for reads: a read that was under way
	// meanwhile is too old to tell that something has ended.
	changes uint64
	// checkAt is when to read it, zero: when all are read. sighted is what the last
	// read found that is news, but is not believed yet.
	checkAt   time.Time
	sighted   sight
	sightedAt time.Time
}

// sight is what a read found of a key.
type sight struct {
	some          bool
	token         int64
	held, expired bool
}

// fact is an event, or what a read found that began after so many changes.
type fact struct {
	event   store.Event
	lock    *store.Lock
	changes uint64
}

// receive takes an event in. It does not block.
func (w *watched) receive(e store.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	w.receiveLocked(fact{event: e})
}

// found takes in what a read found.
func (w *watched) found(lock store.Lock, changes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receiveLocked(fact{lock: &lock, changes: changes})
}

func (w *watched) receiveLocked(f fact) {
	if len(w.pending) >= maxTidings {
		w.pending = nil
		w.checkLocked(hintPause)
		return
	}
	w.pending = append(w.pending, f)
	if !w.notifying {
		w.notifying = w.m.spawn(w.notify)
	}
}

// begin makes a stream be told what comes after a view.
func (w *watched) begin(st *stream, lock store.Lock) {
	st.begin(lock)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++ // reads that are under way may be older than the view
	w.expectLocked(lock)
}

// notify tells the streams what was heard, until there is nothing more.
func (w *watched) notify() {
	for {
		w.mu.Lock()
		if len(w.pending) == 0 {
			w.notifying = false
			w.mu.Unlock()
			return
		}
		f := w.pending[0]
		w.pending = w.pending[1:]
		w.mu.Unlock()
		if f.lock != nil {
			w.notifyRead(f)
		} else {
			w.notifyEvent(f.event)
		}
	}
}

func (w *watched) notifyAll(t tiding) {
	w.mu.Lock()
	streams := slices.Collect(maps.Keys(w.streams))
	w.mu.Unlock()
	for _, st := range streams {
		st.notify(t)
	}
}

// notifyEvent tells what the store has told.
func (w *watched) notifyEvent(e store.Event) {
	t := tiding{token: e.Token, Event: Event{Kind: e.Kind, Key: w.key, Outcome: e.Outcome, Result: e.Result, Stopping: e.Stopping}}
	if e.Kind == store.EventAcquired {
		lock, err := w.holder(e.Token)
		if err != nil { // the next read tells it
			w.m.log.Debug("who acquired a watched key is not known, trying again", "key", w.key, "error", err)
			w.check(jittered(w.m.cfg.PollInterval))
			return
		}
		t.Lock = lock
		w.mu.Lock()
		w.expectLocked(lock)
		w.mu.Unlock()
	}
	w.notifyAll(t)
}

// holder finds out who has acquired the key under a token. The lock is not held when
// that is over.
func (w *watched) holder(token int64) (store.Lock, error) {
	none := store.Lock{Key: w.key}
	if h := w.m.held.get(w.key); h != nil && h.token == token && h.valid(clock.Read(w.m.clk)) {
		return w.m.lockOf(h), nil
	}
	if w.isOver(token) {
		return none, nil
	}
	lock, err := submit(w.m.ctx, w.m.reads, w.key)
	if err != nil || !lock.Held || lock.Token != token {
		return none, err
	}
	return lock, nil
}

// isOver reports whether the end of a grant, or a later one, was heard already.
func (w *watched) isOver(token int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.pending, func(f fact) bool {
		e := f.event
		return f.lock == nil && (e.Token > token || e.Token == token && (e.Kind == store.EventReleased || e.Kind == store.EventExpired))
	})
}

// notifyRead tells what a read found.
func (w *watched) notifyRead(f fact) {
	lock := *f.lock
	if !w.believe(f) {
		return
	}
	if lock.Held {
		w.notifyAll(tiding{token: lock.Token, read: true, Event: Event{Kind: store.EventAcquired, Key: w.key, Lock: lock}})
		if lock.Stopping != nil {
			w.notifyAll(tiding{token: lock.Token, read: true, Event: Event{Kind: store.EventStopping, Key: w.key, Stopping: lock.Stopping}})
		}
		return
	}
	kind := store.EventReleased
	if lock.Expired {
		kind = store.EventExpired
	}
	w.notifyAll(tiding{token: lock.Token, read: true, Event: Event{Kind: kind, Key: w.key}})
}

// believe reports whether a read is news, and to be told: not if something was heard
// since it began, and only when two reads say the same. An expired holder may be
// being renewed in this moment; and what the store tells knows more than a read, but
// may come a moment later.
func (w *watched) believe(f fact) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.changes != w.changes {
		w.checkLocked(hintPause)
		return false
	}
	w.expectLocked(*f.lock)
	if !w.differsLocked(*f.lock) {
		w.sighted = sight{}
		return false
	}
	now := w.m.clk.Now()
	if sighted := (sight{true, f.lock.Token, f.lock.Held, f.lock.Expired}); sighted != w.sighted {
		w.sighted, w.sightedAt = sighted, now
	}
	if left := w.sightedAt.Add(checkPause).Sub(now); left > 0 {
		w.checkLocked(left)
		return false
	}
	w.sighted = sight{}
	return true
}

// differsLocked reports whether what a read found is news to one of the streams.
func (w *watched) differsLocked(lock store.Lock) bool {
	for st := range w.streams {
		if st.differs(lock) {
			return true
		}
	}
	return false
}

// expectLocked makes the key be read just after its holder's expiry.
func (w *watched) expectLocked(lock store.Lock) {
	if lock.Held {
		w.checkLocked(max(lock.Holder.ExpiresIn+checkSlack, checkPause))
	}
}

func (w *watched) check(in time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkLocked(in)
}

// checkLocked makes the key be read after so long, or before.
func (w *watched) checkLocked(in time.Duration) {
	at := w.m.clk.Now().Add(in)
	if w.checkAt.IsZero() || at.Before(w.checkAt) {
		w.checkAt = at
		w.m.watches.changed(w.m.watches.pollWake)
	}
}
