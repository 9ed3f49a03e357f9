package holdings

import (
	"crypto/rand"
	"encoding/hex"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Config is what a set of sessions needs. All fields are required.
type Config struct {
	// Instance and Pod name this sidecar; others see them in the holder.
	Instance, Pod string
	// TTL is the default TTL of a session.
	TTL                             time.Duration
	MaxSessions, MaxLocksPerSession int

	Clock    clock.Clock
	Observer *observe.Observer
	// Draining is closed when no further sessions may open.
	Draining <-chan struct{}
	Leases   *heartbeat.Leases
	Needs    *hearing.Needs
	// RenewInterval is the longest time between two renewals, which report requests to stop.
	RenewInterval time.Duration
}

// soonEnough is the longest interval after which a renewal may be the first to tell of a request to stop, and of a crash of the server.
const soonEnough = 5 * time.Second

// needs are those of a session that holds locks. The stream of an explicit session tells its app of a request to stop. Other apps look for
// that themselves, now and then, so a renewal is soon enough if renewals are not rare.
func (c *Config) needs(o types.SessionOptions) hearing.Kind {
	switch {
	case c.RenewInterval > soonEnough:
		return hearing.News
	case o.Explicit:
		return hearing.Stops
	}
	return hearing.Nothing
}

// Releaser is package attempt, which tells the store of locks that have left their sessions.
type Releaser interface {
	// Release frees a lock, or gives it to the next waiting call. It does not block.
	Release(r *Release)
}

// Set contains the sessions of a sidecar, and their locks.
type Set struct {
	cfg   Config
	rel   Releaser
	clk   clock.Clock
	obs   *observe.Observer
	began time.Time
	ends  *recentEnds
	locks atomic.Int64 // the number of locks that sessions hold
	bytes atomic.Int64 // the bytes of their keys and data

	// awaited: signals have come for grants that are not here yet. While it is true, each new lock wakes came.
	awaited atomic.Bool
	came    chan struct{}

	mu       sync.Mutex
	sessions map[string]*Session

	// The shards find the locks by their keys, so calls for different keys rarely wait for the same mutex.
	seed   maphash.Seed
	shards [shards]shard
}

// New makes an empty set, whose locks are released by rel.
func New(cfg Config, rel Releaser) *Set {
	hs := &Set{
		cfg: cfg, rel: rel, clk: cfg.Clock, obs: cfg.Observer, began: cfg.Clock.Now(),
		ends: newRecentEnds(), sessions: make(map[string]*Session), seed: maphash.MakeSeed(),
		came: make(chan struct{}, 1),
	}
	for i := range hs.shards {
		hs.shards[i].locks = newLockMap()
	}
	return hs
}

// Open opens a session. Errors: [types.LimitError]; [types.ErrDraining] while the sidecar shuts down.
func (hs *Set) Open(o types.SessionOptions) (*Session, error) {
	s := &Session{
		set: hs, id: randomHex(16), name: o.Name, ttl: o.TTL, explicit: o.Explicit, onLost: o.OnLost, onStop: o.OnStop, onEnd: o.OnEnd, reach: o.Reach,
		ending: make(chan struct{}), released: make(chan struct{}),
		held: newLockMap(), needs: hs.cfg.needs(o),
	}
	if s.name == "" {
		s.name = randomHex(4)
	}
	if s.ttl == 0 {
		s.ttl = hs.cfg.TTL
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if types.Closed(hs.cfg.Draining) { // under the mutex, because Stop ends every session in the list
		return nil, types.ErrDraining
	}
	if len(hs.sessions) >= hs.cfg.MaxSessions {
		return nil, &types.LimitError{What: "sessions", Setting: "LOCKSIDECAR_MAX_SESSIONS", Limit: hs.cfg.MaxSessions}
	}
	hs.sessions[s.id] = s
	return s, nil
}

// Session finds a session that other connections may join, by its id. Error: [types.ErrSessionEnded].
func (hs *Set) Session(id string) (*Session, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	s := hs.sessions[id]
	if s == nil || !s.explicit {
		return nil, types.ErrSessionEnded
	}
	return s, nil
}

// All returns the sessions that have not ended.
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

// Ended returns how a grant ended, if it ended recently.
func (hs *Set) Ended(key string, token int64) (End, bool) {
	return hs.ends.get(grantRef{key, token})
}

// Await says whether somebody must know of new locks. While it is true, [Set.Came] receives after each.
func (hs *Set) Await(so bool) { hs.awaited.Store(so) }

// Came receives when a session has got a lock, or several.
func (hs *Set) Came() <-chan struct{} { return hs.came }

// Held is the number of locks that sessions hold, and the bytes of their keys and data.
func (hs *Set) Held() (locks int, bytes int64) { return int(hs.locks.Load()), hs.bytes.Load() }

// Empty reports whether no session holds a lock.
func (hs *Set) Empty() bool { return hs.locks.Load() == 0 }

// Observe reports the number of sessions and locks.
func (hs *Set) Observe(st *observe.State) {
	hs.mu.Lock()
	st.Sessions = len(hs.sessions)
	hs.mu.Unlock()
	st.Held, st.OldestHold = hs.count(hs.clk.Now().Sub(hs.began))
}

// Remembered counts what is remembered, by name, for tests.
func (hs *Set) Remembered() map[string]int {
	all := map[string]int{"locks": int(hs.locks.Load())}
	for i := range hs.shards {
		all["keys"] += hs.shards[i].locks.count()
	}
	for _, s := range hs.All() {
		s.mu.Lock()
		all["pending calls"] += s.pending
		all["undelivered locks"] += s.undelivered
		all["releases"] += len(s.releasing)
		all["entrances"] += len(s.entrances)
		for h := range s.held.all {
			all["entries"] += len(h.entered)
		}
		s.mu.Unlock()
		all["requests"] += s.Requests.Count()
	}
	return all
}

// shownTypes limits the key types of held locks that are counted separately: more than the metrics show,
// but fewer than there can be keys.
const shownTypes = 1000

// count counts the locks by the type of their keys, and returns how long the oldest is held. now counts
// from the start of the set. Counting at each reading of the metrics costs less than at each call.
func (hs *Set) count(now time.Duration) (byType map[string]observe.HeldLocks, longest time.Duration) {
	byType = make(map[string]observe.HeldLocks)
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for h := range sh.locks.all {
			name := store.TypeOf(h.Key)
			if _, known := byType[name]; !known && len(byType) >= shownTypes {
				name = store.Others
			}
			n := byType[name]
			if h.IsShare() {
				n.Shared++
			} else {
				n.Exclusive++
			}
			byType[name] = n
			longest = max(longest, now-h.since)
		}
		sh.mu.Unlock()
	}
	return byType, longest
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}
