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
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
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

	lease Lease // belongs to Keep

	keepNow, lookNow chan struct{}
}

// New makes watches without streams.
func New(cfg Config) *Watches {
	return &Watches{cfg: cfg, keys: make(map[string]*key), keepNow: make(chan struct{}, 1), lookNow: make(chan struct{}, 1)}
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
		wake(ws.keepNow)
	}
	st := &Stream{ws: ws, key: k, hear: hear, begun: make(chan struct{})}
	k.streams[st] = struct{}{}
	ws.streams++
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
	delete(st.key.streams, st)
	if len(st.key.streams) == 0 {
		wake(ws.keepNow)
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
func (ws *Watches) LeaseEnded() { wake(ws.keepNow) }

func wake(now chan struct{}) {
	select {
	case now <- struct{}{}:
	default:
	}
}

// run calls step, then again after the time that step returned, or when it is woken.
func run(ctx context.Context, now <-chan struct{}, step func(context.Context) time.Duration) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(step(ctx))
		select {
		case <-timer.C:
		case <-now:
		case <-ctx.Done():
		}
	}
}
