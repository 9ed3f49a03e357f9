// Package watch sends events of keys to streams.
//
// An event is the difference between two states of a key: the state that a stream knows, and a later one.
// The sidecar learns a state in two ways:
//
//   - The store pushes what happened. A push may be lost, late, or out of order. The push of an end
//     contains the outcome and the result, so it is sent at once. The push of a beginning only causes a
//     read of the key, because the read also shows the holder.
//   - The key is read: after such a push, just after its holder's expiry, when the store reports that
//     pushes may have been lost, and regularly.
//
// If a read finds a state that no push announced, it must be confirmed: a second read, at least [settle]
// later, must find the same, without a push in between. An expired holder may still be renewed, and a push
// in flight may contain the outcome. Two such reads override every earlier event. So after an outage, a
// failover or forged pushes, every stream still reaches the key's true state.
//
// The store watches a key once for all its streams. All watches are under one lease. When this lease is
// lost or retired, the watches are repeated under another one.
package watch

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// maxKeys limits the watched keys, because all of them are read regularly.
const maxKeys = 1000

// Lease is a lease of this sidecar. It is renewed until Unpin.
type Lease interface {
	ID() store.LeaseID
	// Alive reports whether keys are still watched under the lease: it is neither lost nor retired.
	Alive() bool
	Unpin()
}

// Config is the configuration of watches. All fields are required.
type Config struct {
	Store store.Watcher
	Get   func(ctx context.Context, keys []string) ([]store.Lock, error)
	Clock clock.Clock
	Log   *slog.Logger
	Needs *hearing.Needs
	// Pin returns a lease that is open and alive.
	Pin func(context.Context) (Lease, error)
	// Every returns how often each key is read. Retry returns the pause after a failure.
	Every, Retry func() time.Duration
	// Timeout limits one operation of the store.
	Timeout time.Duration
	// BatchMax limits the keys in one operation of the store.
	BatchMax   int
	MaxStreams int
}

// Watches contains the streams. [Watches.Keep] and [Watches.Look] must run.
type Watches struct {
	cfg Config

	mu      sync.Mutex
	keys    map[string]*key
	streams int

	// These belong to Keep. unconfirmed are keys that the store may watch for no stream, and when to end that: the end of a watch has failed, or
	// the outcome of a watch is unknown.
	lease       Lease
	unconfirmed map[string]time.Time

	keepNow, lookNow chan struct{}
}

// New makes watches without streams.
func New(cfg Config) *Watches {
	return &Watches{
		cfg: cfg, keys: make(map[string]*key), unconfirmed: make(map[string]time.Time), keepNow: make(chan struct{}, 1), lookNow: make(chan struct{}, 1),
	}
}

// Stream receives the events of one key.
type Stream struct {
	ws   *Watches
	key  *key
	hear func(Event)

	// begun is closed when lock or err is set.
	begun chan struct{}
	lock  store.Lock
	err   error

	// The mutex of Watches guards the following fields.
	closed bool
	joined bool // it has begun, without an error
	told   state
}

// Open makes a stream. After the stream has begun, hear is called with each event, one call at a time. hear
// must not block and must not call this package. The caller must call Close. Errors: [types.LimitError].
func (ws *Watches) Open(name string, hear func(Event)) (*Stream, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if limit := ws.cfg.MaxStreams; ws.streams >= limit {
		return nil, &types.LimitError{What: "watching calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
	}
	k := ws.keys[name]
	if k == nil {
		if len(ws.keys) >= maxKeys {
			return nil, &types.LimitError{What: "watched keys", Limit: maxKeys}
		}
		k = &key{name: name, streams: make(map[*Stream]struct{})}
		ws.keys[name] = k
	}
	if k.watched {
		ws.lookIn(k, 0)
	} else {
		clock.Wake(ws.keepNow)
	}
	st := &Stream{ws: ws, key: k, hear: hear, begun: make(chan struct{})}
	k.streams[st] = struct{}{}
	ws.streams++
	ws.cfg.Needs.Begin(hearing.News) // before the store is asked
	return st, nil
}

// Begun is closed when the stream has begun, or has failed.
func (st *Stream) Begun() <-chan struct{} { return st.begun }

// State returns the key as it was when the stream began, or the error.
func (st *Stream) State() (store.Lock, error) {
	<-st.begun
	return st.lock, st.err
}

// Close ends a stream. After Close has returned, hear is not called.
func (st *Stream) Close() {
	st.ws.mu.Lock()
	defer st.ws.mu.Unlock()
	st.ws.closeLocked(st)
}

func (ws *Watches) closeLocked(st *Stream) {
	if st.closed {
		return
	}
	st.closed = true
	ws.streams--
	ws.cfg.Needs.End(hearing.News)
	delete(st.key.streams, st)
	if len(st.key.streams) == 0 {
		clock.Wake(ws.keepNow)
	}
}

// fail ends streams that have not begun. Others continue, because the next read corrects them.
func (ws *Watches) fail(waiting []*Stream, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, st := range waiting {
		if !st.joined && !st.closed {
			st.err = err
			close(st.begun)
			ws.closeLocked(st)
		}
	}
}

// Receive processes a push of the store. It does not block.
func (ws *Watches) Receive(e store.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.keys[e.Key]; k != nil && k.push(e) {
		ws.lookIn(k, 0)
	}
}

// Recheck causes a read of all keys, because pushes may have been lost.
func (ws *Watches) Recheck() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, k := range ws.keys {
		ws.lookIn(k, 0)
	}
}

// LeaseEnded repeats the watches if their lease is no longer alive.
func (ws *Watches) LeaseEnded() { clock.Wake(ws.keepNow) }

// Run makes the store watch exactly the keys that have streams, and reads the keys when they are due, until ctx ends.
func (ws *Watches) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { clock.Loop(ctx, ws.keepNow, func() time.Duration { return ws.keep(ctx) }) })
	both.Go(func() { clock.Loop(ctx, ws.lookNow, func() time.Duration { return ws.look(ctx) }) })
	both.Wait()
}

func (ws *Watches) keep(ctx context.Context) (again time.Duration) {
	gone, missing, waiting := ws.plan()
	if len(gone) > 0 {
		ws.unwatch(ctx, gone)
	}
	if len(missing) > 0 {
		if err := ws.watch(ctx, missing); err != nil {
			ws.fail(waiting, err)
			ws.cfg.Log.Debug("keys not watched, trying again", "error", err)
			return ws.cfg.Retry()
		}
	}
	if len(gone)+len(missing) > 0 {
		return 0 // there may be more
	}
	return ws.nextEnd()
}

// plan returns the watched keys without streams, and the keys not watched yet, with their waiting streams.
// A stream that comes while the store is asked is not among them, so it does not fail if the store fails.
func (ws *Watches) plan() (gone []string, missing []*key, waiting []*Stream) {
	lost := ws.lease != nil && !ws.lease.Alive() // the store drops watches under a lost lease
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for name, k := range ws.keys {
		k.watched = k.watched && !lost
		switch {
		case len(k.streams) == 0 && !k.watched:
			delete(ws.keys, name)
		case len(k.streams) == 0 && len(gone) < ws.cfg.BatchMax:
			delete(ws.keys, name)
			gone = append(gone, name)
		case !k.watched && len(missing) < ws.cfg.BatchMax:
			missing = append(missing, k)
			waiting = append(waiting, k.waiting()...)
		}
	}
	if lost {
		clear(ws.unconfirmed)
	}
	now := ws.cfg.Clock.Now()
	for name, from := range ws.unconfirmed {
		switch k := ws.keys[name]; {
		case now.Before(from):
		case k != nil && k.watched, slices.Contains(gone, name): // the end of its last stream ends that, or just does
			delete(ws.unconfirmed, name)
		case k == nil && len(gone) < ws.cfg.BatchMax:
			delete(ws.unconfirmed, name)
			gone = append(gone, name)
		}
	}
	if lost || ws.lease != nil && len(ws.keys) == 0 {
		ws.lease.Unpin()
		ws.lease = nil
	}
	return gone, missing, waiting
}

// watch makes the store watch keys. The keys are read then, because earlier events may be missed.
func (ws *Watches) watch(ctx context.Context, keys []*key) (err error) {
	if ws.lease == nil {
		if ws.lease, err = ws.cfg.Pin(ctx); err != nil {
			return err
		}
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	givenUp := ws.cfg.Clock.Now().Add(2 * ws.cfg.Timeout) // from then on the store carries the question out no more
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	if err := ws.cfg.Store.Watch(ctx, names, ws.lease.ID()); err != nil {
		if store.OutcomeUnknown(err) {
			ws.endLater(names, givenUp)
		}
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, k := range keys {
		k.watched = true
		ws.lookIn(k, 0)
	}
	return nil
}

// unwatch ends watches. If the store fails, because a busy key's row is locked for instance, it is asked again: a key that is watched has no cohorts, and
// no sidecar keeps it. At the latest, the watches end with the lease, which may live for long.
func (ws *Watches) unwatch(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	if err := ws.cfg.Store.Unwatch(ctx, names); err != nil {
		ws.cfg.Log.Debug("could not stop watching keys, trying again", "keys", len(names), "error", err)
		ws.endLater(names, ws.cfg.Clock.Now().Add(ws.cfg.Retry()))
	}
}

// endLater makes the watches of keys end from a time on, unless a stream watches them then.
func (ws *Watches) endLater(names []string, from time.Time) {
	for _, name := range names {
		ws.unconfirmed[name] = from
	}
}

// nextEnd is how long it takes until an unconfirmed watch must be ended.
func (ws *Watches) nextEnd() time.Duration {
	now, next := ws.cfg.Clock.Now(), time.Hour
	for _, from := range ws.unconfirmed {
		if wait := from.Sub(now); wait > 0 { // the others wait for the watch of a stream
			next = min(next, wait)
		}
	}
	return next
}

const (
	// expirySlack is how long after its holder's expiry a key is read.
	expirySlack = 10 * time.Millisecond
	// settle is the least time between two reads of which the second confirms the first.
	settle = 100 * time.Millisecond
)

// read is a read under way. pushes is the key's count of pushes when the read began.
type read struct {
	*key
	pushes  uint64
	joining []*Stream
}

func (ws *Watches) look(ctx context.Context) time.Duration {
	reads, next := ws.due()
	if len(reads) == 0 {
		return next
	}
	names := make([]string, len(reads))
	for i, r := range reads {
		names[i] = r.name
	}
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	locks, err := ws.cfg.Get(ctx, names)
	if err != nil {
		ws.cfg.Log.Debug("watched keys not read, trying again", "keys", len(reads), "error", err)
	}
	for i, r := range reads {
		if err != nil {
			ws.fail(r.joining, err)
		}
		ws.mu.Lock()
		if err != nil {
			ws.lookIn(r.key, ws.cfg.Retry())
		} else {
			ws.found(r, locks[i])
		}
		ws.mu.Unlock()
	}
	return 0
}

// due returns the keys that are due now or soon. Without such a key, next is the time until one is due.
func (ws *Watches) due() (reads []read, next time.Duration) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now, every := ws.cfg.Clock.Now(), ws.cfg.Every()
	next = time.Hour
	var soon []*key
	for _, k := range ws.keys {
		if len(k.streams) == 0 {
			k.lookAt = time.Time{} // else a time that has passed would keep lookIn from waking Look for the next stream
			continue
		}
		if wait := k.lookAt.Sub(now); !k.lookAt.IsZero() {
			next = min(next, wait)
			if wait <= every/2 {
				soon = append(soon, k)
			}
		}
	}
	if next > 0 {
		return nil, next
	}
	for _, k := range soon[:min(len(soon), ws.cfg.BatchMax)] {
		r := read{key: k, pushes: k.pushes}
		if k.watched {
			r.joining = k.waiting()
		}
		reads = append(reads, r)
		k.lookAt = now.Add(every)
	}
	return reads, 0
}

// found processes the result of a read. The caller holds ws.mu.
func (ws *Watches) found(r read, lock store.Lock) {
	if lock.Held {
		ends := lock.Holder.ExpiresIn
		if lock.Shared {
			ends = lock.NextEnd
		}
		ws.lookIn(r.key, max(ends+expirySlack, settle))
	}
	if r.announced(&lock) {
		// Shares that are newer than what the streams know are told. The rest must be confirmed.
		r.tell(func(s state) (state, []Event) { return s.readShares(&lock, true) })
	}
	if yes, again := r.mayTell(lock, ws.cfg.Clock.Now()); yes {
		r.tell(func(s state) (state, []Event) { return s.read(lock) })
	} else if again > 0 {
		ws.lookIn(r.key, again)
	}
	for _, st := range r.joining {
		if !st.closed && st.join(lock, r.pushes != r.key.pushes) {
			ws.lookIn(r.key, 0)
		}
	}
}

// lookIn makes a key be read after the given time at the latest. The caller holds ws.mu.
func (ws *Watches) lookIn(k *key, wait time.Duration) {
	at := ws.cfg.Clock.Now().Add(wait)
	if k.lookAt.IsZero() || at.Before(k.lookAt) {
		k.lookAt = at
		clock.Wake(ws.lookNow)
	}
}
