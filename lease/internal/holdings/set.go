package holdings

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Config is what a set of sessions needs. All fields are required.
type Config struct {
	// Instance and Pod are this sidecar, as others see the holder.
	Instance, Pod string
	// TTL is the default of a session.
	TTL                             time.Duration
	MaxSessions, MaxLocksPerSession int

	Clock    clock.Clock
	Observer *observe.Observer
	// Draining is closed when no more sessions are opened.
	Draining <-chan struct{}
	// Sender sends the releases.
	Sender Sender
	// Lease is the lease for a TTL, or nil.
	Lease func(ttl time.Duration) *heartbeat.Lease
	// HandOn gives a released lock to the next of its cohort. It reports false if the store must do that, and
	// who was served.
	HandOn func(Passed) (served []store.AttemptID, given bool)
	// QueueLength is how many calls of this sidecar wait for a key.
	QueueLength func(key string) int
}

// Set has the sessions of a sidecar, and what they hold.
type Set struct {
	cfg   Config
	clk   clock.Clock
	obs   *observe.Observer
	began time.Time
	held  *index
	ends  *recentEnds
	locks atomic.Int64 // that sessions hold

	mu       sync.Mutex
	sessions map[string]*Session
}

// New makes a set without sessions.
func New(cfg Config) *Set {
	return &Set{
		cfg: cfg, clk: cfg.Clock, obs: cfg.Observer, began: cfg.Clock.Now(),
		held: newIndex(), ends: newRecentEnds(), sessions: make(map[string]*Session),
	}
}

// Open opens a session. Errors: [types.LimitError]; [types.ErrDraining] while the sidecar shuts down.
func (hs *Set) Open(o types.SessionOptions) (*Session, error) {
	s := &Session{
		set: hs, id: randomHex(16), name: o.Name, ttl: o.TTL, explicit: o.Explicit, onLost: o.OnLost, onStop: o.OnStop, onEnd: o.OnEnd,
		ending: make(chan struct{}), released: make(chan struct{}),
		held: newLockMap(),
	}
	if s.name == "" {
		s.name = randomHex(4)
	}
	if s.ttl == 0 {
		s.ttl = hs.cfg.TTL
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	select {
	case <-hs.cfg.Draining: // under the mutex: Stop ends every session that is in the list
		return nil, types.ErrDraining
	default:
	}
	if len(hs.sessions) >= hs.cfg.MaxSessions {
		return nil, &types.LimitError{What: "sessions", Setting: "LOCKSIDECAR_MAX_SESSIONS", Limit: hs.cfg.MaxSessions}
	}
	hs.sessions[s.id] = s
	return s, nil
}

// Session finds a session that others may join, by its id. Error: [types.ErrSessionEnded].
func (hs *Set) Session(id string) (*Session, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.sessions[id]
	if s == nil || !s.explicit {
		return nil, types.ErrSessionEnded
	}
	return s, nil
}

// All are the sessions that have not ended.
func (hs *Set) All() []*Session {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return slices.Collect(maps.Values(hs.sessions))
}

func (hs *Set) forget(s *Session) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.sessions, s.id)
}

// Get is the exclusive lock that a session holds under a key, or nil.
func (hs *Set) Get(key string) *Lock { return hs.held.get(key) }

// Find is the lock or share that a session holds under a token, or nil.
func (hs *Set) Find(key string, token int64) *Lock { return hs.held.find(key, token) }

// On are the locks that are held under a lease.
func (hs *Set) On(l *heartbeat.Lease) []*Lock { return hs.held.on(l) }

// Ended tells what became of a grant, if it ended lately.
func (hs *Set) Ended(key string, token int64) (End, bool) {
	return hs.ends.get(grantRef{key, token})
}

// Empty reports whether no session holds a lock.
func (hs *Set) Empty() bool { return hs.locks.Load() == 0 }

// Observe tells how many sessions there are, and what they hold.
func (hs *Set) Observe(st *observe.State) {
	hs.mu.Lock()
	st.Sessions = len(hs.sessions)
	hs.mu.Unlock()
	st.Held, st.OldestHold = hs.held.count(hs.clk.Now().Sub(hs.began))
}

// Kept counts what is kept of sessions and locks, by its name, for tests.
func (hs *Set) Kept() map[string]int {
	kept := map[string]int{"locks": int(hs.locks.Load())}
	for i := range hs.held.shards {
		kept["keys"] += hs.held.shards[i].locks.count()
	}
	for _, s := range hs.All() {
		s.mu.Lock()
		kept["pending calls"] += s.pending
		kept["unpublished locks"] += s.unpublished
		kept["releases"] += len(s.freeing)
		kept["entrances"] += len(s.entrances)
		for h := range s.held.all {
			kept["entries"] += len(h.entered)
		}
		s.mu.Unlock()
		kept["requests"] += s.Requests.Count()
	}
	return kept
}
