package lease

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
)

// holdingsConfig is what holdings need.
type holdingsConfig struct {
	// Instance and Pod are this sidecar, as others see the holder.
	Instance, Pod string
	// TTL is the default of a session.
	TTL                             time.Duration
	MaxSessions, MaxLocksPerSession int

	Clock    clock.Clock
	Observer *observe.Observer
	// Draining is closed when no more sessions are opened.
	Draining <-chan struct{}
	// Sender sends the releases of what sessions give up.
	Sender sender
	// Lease is the lease for a TTL, or nil.
	Lease func(ttl time.Duration) *heartbeat.Lease
	// QueueLength is how many calls of this sidecar wait for a key.
	QueueLength func(key string) int
}

// holdings are the sessions of a sidecar, and what they hold.
type holdings struct {
	cfg   holdingsConfig
	clk   clock.Clock
	obs   *observe.Observer
	began time.Time
	held  *heldSet
	ends  *recentEnds
	locks atomic.Int64 // that sessions hold

	mu       sync.Mutex
	sessions map[string]*Session
}

func newHoldings(cfg holdingsConfig) *holdings {
	return &holdings{
		cfg: cfg, clk: cfg.Clock, obs: cfg.Observer, began: cfg.Clock.Now(),
		held: newHeldSet(), ends: newRecentEnds(), sessions: make(map[string]*Session),
	}
}

// open opens a session. It fails with [LimitError], and with [ErrDraining] while the sidecar
// shuts down.
func (hs *holdings) open(o types.SessionOptions) (*Session, error) {
	s := &Session{
		set: hs, id: randomHex(16), name: o.Name, ttl: o.TTL, explicit: o.Explicit, onLost: o.OnLost, onStop: o.OnStop, onEnd: o.OnEnd,
		ending: make(chan struct{}), released: make(chan struct{}),
		held: make(map[string]*heldLock),
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

// session finds a session that other connections may join, by its id. It fails with
// [ErrSessionEnded].
func (hs *holdings) session(id string) (*Session, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.sessions[id]
	if s == nil || !s.explicit {
		return nil, types.ErrSessionEnded
	}
	return s, nil
}

// all are the sessions that have not ended.
func (hs *holdings) all() []*Session {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return slices.Collect(maps.Values(hs.sessions))
}

// forget takes an ended session off the list.
func (hs *holdings) forget(s *Session) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	delete(hs.sessions, s.id)
}

// get is the lock that a session holds under a key, or nil.
func (hs *holdings) get(key string) *heldLock { return hs.held.get(key) }

// on are the locks that are held under a lease.
func (hs *holdings) on(l *heartbeat.Lease) []*heldLock { return hs.held.on(l) }

// ended tells what became of a grant, if it ended lately.
func (hs *holdings) ended(key string, token int64) (grantEnd, bool) {
	return hs.ends.get(grantRef{key, token})
}

// empty reports whether no session holds a lock.
func (hs *holdings) empty() bool { return hs.locks.Load() == 0 }

// observe tells how many sessions there are, and what they hold.
func (hs *holdings) observe(st *observe.State) {
	hs.mu.Lock()
	st.Sessions = len(hs.sessions)
	hs.mu.Unlock()
	st.Held, st.OldestHold = hs.held.count(hs.clk.Now().Sub(hs.began))
}

// Kept counts what is kept of sessions and locks, by its name, for tests.
func (hs *holdings) Kept() map[string]int {
	kept := map[string]int{"locks": int(hs.locks.Load())}
	for i := range hs.held.shards {
		kept["keys"] += len(hs.held.shards[i].m)
	}
	for _, s := range hs.all() {
		s.mu.Lock()
		kept["pending calls"] += s.pending
		kept["unpublished locks"] += s.unpublished
		kept["releases"] += len(s.freeing)
		kept["entrances"] += len(s.entrances)
		for _, h := range s.held {
			kept["entries"] += len(h.entered)
		}
		s.mu.Unlock()
		kept["requests"] += s.requests.Count()
	}
	return kept
}
