package lease

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// holdingsConfig is what holdings need.
type holdingsConfig struct {
	// Instance and Pod are this sidecar, as others see the holder. TTL is the default of a
	// session.
	Instance, Pod                   string
	TTL                             time.Duration
	MaxSessions, MaxLocksPerSession int
}

// holdings are the sessions of a sidecar, and what they hold.
type holdings struct {
	cfg    holdingsConfig
	clk    clock.Clock
	began  time.Time
	obs    *observe.Observer
	sender sender
	// leaseFor is the lease for a TTL, or nil.
	leaseFor func(ttl time.Duration) *lease
	// queueLength is how many calls of this sidecar wait for a key.
	queueLength func(key string) int

	held  *heldSet
	ends  *recentEnds
	locks atomic.Int64 // that sessions hold

	mu       sync.Mutex
	draining <-chan struct{}
	sessions map[string]*Session
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
	case <-hs.draining: // under the mutex: Stop ends every session that is in the list
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
func (hs *holdings) on(l *lease) []*heldLock { return hs.held.on(l) }

// ended tells what became of a grant, if it ended lately.
func (hs *holdings) ended(ref grantRef) (grantEnd, bool) { return hs.ends.get(ref) }

// endedKeys are the keys of the grants that ended lately.
func (hs *holdings) endedKeys() []string { return hs.ends.keys() }

// observe tells how many sessions there are, and what they hold.
func (hs *holdings) observe(st *observe.State) {
	st.Sessions = len(hs.all())
	st.Held, st.OldestHold = hs.held.count(hs.clk.Now().Sub(hs.began))
}
