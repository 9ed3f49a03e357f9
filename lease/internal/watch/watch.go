// Package watch tells streams what happens to keys.
//
// An event is the difference between two states of a key: the state that a stream knows, and one
// that is learnt later. There are two ways to learn a state.
//
//   - The store pushes what happened. A push may be lost, late, or overtaken. The push of an end has
//     the outcome and the result, so it is told at once. The push of a beginning only makes the key be
//     read, because the read also tells who the holder is.
//   - The key is read: when a push says so, just after its holder's expiry, when the store says that
//     pushes may have been lost, and regularly.
//
// If no push announced what a read found, a second read, at least [settle] later, must find the
// same, and no push may come meanwhile. An expired holder may still be renewed, and a push on its
// way may know the outcome. Two such reads are the truth, whatever was told before. So after an
// outage, a failover or forged pushes every stream still comes to the key's true state.
//
// The store watches a key once. All watches are under one lease. When it is lost or retired, they
// are repeated under another one.
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

// maxKeys is the most watched keys, because all of them are read regularly.
const maxKeys = 1000

// Lease is a lease of this sidecar. It is renewed until Unpin.
type Lease interface {
	ID() store.LeaseID
	// Alive reports whether keys are still watched under it: it is neither lost nor retired.
	Alive() bool
	Unpin()
}

// Config is what watches need. All fields are required.
type Config struct {
	Store store.Watcher
	Get   func(ctx context.Context, keys []string) ([]store.Lock, error)
	Clock clock.Clock
	Log   *slog.Logger
	// Pin returns a lease that is open and alive.
	Pin func(context.Context) (Lease, error)
	// Every returns how often each key is read, Retry the pause after a failure.
	Every, Retry func() time.Duration
	// Timeout limits one operation of the store.
	Timeout time.Duration
	// BatchMax is the most keys in one operation of the store.
	BatchMax   int
	MaxStreams int
}

// Watches has the streams. [Watches.Keep] and [Watches.Look] must run.
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

// Stream is told what happens to one key.
type Stream struct {
	ws   *Watches
	key  *key
	hear func(Event)

	// begun is closed when lock or err is set.
	begun chan struct{}
	lock  store.Lock
	err   error

	// The rest is under the mutex of Watches.
	closed bool
	joined bool // it has begun, and without an error
	told   state
}

// Open makes a stream. hear is told what happens after it has begun, from one goroutine at a time.
// It must not block and must not call back. Close must follow. Errors: [types.LimitError].
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

// Begun is closed when the watch is in effect, or has failed.
func (st *Stream) Begun() <-chan struct{} { return st.begun }

// State returns the key as it was when the stream began, or why it has not begun.
func (st *Stream) State() (store.Lock, error) {
	<-st.begun
	return st.lock, st.err
}

// Close ends a stream: it is told nothing any more when Close returns.
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

// fail ends streams that have not begun. Others continue: the next read helps them.
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

// Receive takes a push of the store. It does not block.
func (ws *Watches) Receive(e store.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.keys[e.Key]; k != nil && k.push(e) {
		ws.lookIn(k, 0)
	}
}

// Recheck makes all keys be read now: pushes may have been lost.
func (ws *Watches) Recheck() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, k := range ws.keys {
		ws.lookIn(k, 0)
	}
}

// LeaseEnded makes the watches be repeated if their lease is not alive any more.
func (ws *Watches) LeaseEnded() { wake(ws.keepNow) }

func wake(now chan struct{}) {
	select {
	case now <- struct{}{}:
	default:
	}
}

// run calls step after the time that it returned, or when it is woken.
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
