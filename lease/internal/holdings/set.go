package holdings

import (
	"hash/maphash"
	"iter"
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
	// Instance and Pod name this sidecar; others see them in the holder.
	Instance, Pod string
	// TTL is the default TTL of a session.
	TTL                             time.Duration
	MaxSessions, MaxLocksPerSession int

	Clock    clock.Clock
	Observer *observe.Observer
	// Draining is closed when no further sessions may open.
	Draining <-chan struct{}
	// Sender sends the releases to the store.
	Sender Sender
	// Lease returns the lease for a TTL, or nil.
	Lease func(ttl time.Duration) *heartbeat.Lease
	// HandOn gives a released lock to the next attempt of its cohort. It returns false if the store must do
	// that, and in both cases the attempts that were served.
	HandOn func(Passed) (served []store.AttemptID, given bool)
	// Freed is called when the store has freed an exclusive lock whose call was in the queue.
	Freed func(key string)
	// QueueLength is the number of this sidecar's calls that wait for a key.
	QueueLength func(key string) int
}

// Set contains the sessions of a sidecar, and their locks.
type Set struct {
	cfg   Config
	clk   clock.Clock
	obs   *observe.Observer
	began time.Time
	ends  *recentEnds
	locks atomic.Int64 // the number of locks that sessions hold

	mu       sync.Mutex
	sessions map[string]*Session

	// The shards find the locks by their keys, so calls for different keys rarely wait for the same mutex.
	seed   maphash.Seed
	shards [shards]shard
}

// New makes an empty set.
func New(cfg Config) *Set {
	hs := &Set{
		cfg: cfg, clk: cfg.Clock, obs: cfg.Observer, began: cfg.Clock.Now(),
		ends: newRecentEnds(), sessions: make(map[string]*Session), seed: maphash.MakeSeed(),
	}
	for i := range hs.shards {
		hs.shards[i].locks = newLockMap()
	}
	return hs
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

// Empty reports whether no session holds a lock.
func (hs *Set) Empty() bool { return hs.locks.Load() == 0 }

// Observe reports the number of sessions and locks.
func (hs *Set) Observe(st *observe.State) {
	hs.mu.Lock()
	st.Sessions = len(hs.sessions)
	hs.mu.Unlock()
	st.Held, st.OldestHold = hs.count(hs.clk.Now().Sub(hs.began))
}

// Kept counts stored items by name, for tests.
func (hs *Set) Kept() map[string]int {
	kept := map[string]int{"locks": int(hs.locks.Load())}
	for i := range hs.shards {
		kept["keys"] += hs.shards[i].locks.count()
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

type grantRef struct {
	key   string
	token int64
}

// End says how a grant ended.
type End struct {
	// Lost is the reason of a loss, empty if the lock was released.
	Lost types.LostReason
	// Release is the release, under way or done, if the lock was released.
	Release *Release
}

// Remembered is the minimum number of remembered ended grants of this sidecar. The maximum is one and a
// half times as many.
const Remembered = 10_000

// recentEnds remembers how the last grants ended, in three maps, the latest first. When the first is full,
// the oldest is emptied.
type recentEnds struct {
	mu   sync.Mutex
	ages [3]map[grantRef]End
}

func newRecentEnds() *recentEnds {
	e := &recentEnds{}
	for i := range e.ages {
		e.ages[i] = make(map[grantRef]End)
	}
	return e
}

func (e *recentEnds) add(ref grantRef, end End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ages[0]) >= Remembered/2 {
		oldest := e.ages[2]
		clear(oldest)
		e.ages = [3]map[grantRef]End{oldest, e.ages[0], e.ages[1]}
	}
	e.ages[0][ref] = end
}

// settled forgets a Release that is done. Otherwise its lock would stay in memory as long as the end is remembered.
func (e *recentEnds) settled(ref grantRef) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			end.Release = nil
			known[ref] = end
			return
		}
	}
}

func (e *recentEnds) get(ref grantRef) (End, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			return end, true
		}
	}
	return End{}, false
}

const shards = 64

// lockMap finds locks by key and token. A key has either one exclusive lock or shares with different
// tokens, of which one session may hold several.
type lockMap struct {
	exclusive map[string]*Lock
	shares    map[string]map[int64]*Lock // nil before the first share
	shared    int                        // number of shares
}

func newLockMap() lockMap { return lockMap{exclusive: make(map[string]*Lock)} }

// count is the number of locks.
func (m *lockMap) count() int { return len(m.exclusive) + m.shared }

// find returns the lock of a key under a token, or nil.
func (m *lockMap) find(key string, token int64) *Lock {
	if h := m.exclusive[key]; h != nil && h.Token == token {
		return h
	}
	return m.shares[key][token]
}

// has reports whether h is in the map: not removed, and not replaced by a later grant.
func (m *lockMap) has(h *Lock) bool {
	if h.IsShare() {
		return m.shares[h.Key][h.Token] == h
	}
	return m.exclusive[h.Key] == h
}

// over returns the locks that must have ended because h was granted. If h is a share, an exclusive lock
// that may be downgraded has not ended.
func (m *lockMap) over(h *Lock) (others []*Lock) {
	if own := m.exclusive[h.Key]; own != nil && (!h.IsShare() || !own.IsDowngraded()) {
		others = append(others, own)
	}
	if !h.IsShare() {
		for _, share := range m.shares[h.Key] {
			others = append(others, share)
		}
	}
	return others
}

func (m *lockMap) put(h *Lock) {
	if !h.IsShare() {
		m.exclusive[h.Key] = h
		return
	}
	if m.shares == nil {
		m.shares = make(map[string]map[int64]*Lock)
	}
	if m.shares[h.Key] == nil {
		m.shares[h.Key] = make(map[int64]*Lock)
	}
	m.shares[h.Key][h.Token] = h
	m.shared++
}

// remove removes h. It returns false if h is not in the map.
func (m *lockMap) remove(h *Lock) bool {
	if !m.has(h) {
		return false
	}
	if !h.IsShare() {
		delete(m.exclusive, h.Key)
		return true
	}
	m.shared--
	if delete(m.shares[h.Key], h.Token); len(m.shares[h.Key]) == 0 {
		delete(m.shares, h.Key)
	}
	return true
}

// ofKey yields the locks of a key: one exclusive lock, or shares.
func (m *lockMap) ofKey(key string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		if h := m.exclusive[key]; h != nil && !yield(h) {
			return
		}
		for _, h := range m.shares[key] {
			if !yield(h) {
				return
			}
		}
	}
}

// all yields each lock.
func (m *lockMap) all(yield func(*Lock) bool) {
	for _, h := range m.exclusive {
		if !yield(h) {
			return
		}
	}
	for _, ofKey := range m.shares {
		for _, h := range ofKey {
			if !yield(h) {
				return
			}
		}
	}
}

type shard struct {
	mu    sync.Mutex
	locks lockMap
}

func (hs *Set) shard(key string) *shard {
	return &hs.shards[maphash.String(hs.seed, key)%shards]
}

// Get returns the exclusive lock that a session holds under a key, or nil.
func (hs *Set) Get(key string) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.exclusive[key]
}

// Find returns the lock or share that a session holds under a token, or nil.
func (hs *Set) Find(key string, token int64) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.find(key, token)
}

// put adds h and returns the locks that must have ended because h was granted.
func (hs *Set) put(h *Lock) (over []*Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	over = sh.locks.over(h)
	sh.locks.put(h)
	return over
}

// share turns an exclusive lock into a share. The caller holds the mutex of its session.
func (hs *Set) share(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	was := sh.locks.remove(h)
	h.setTo(isShare, true)
	if was {
		sh.locks.put(h)
	}
}

// remove removes h unless a later grant of the key has replaced it.
func (hs *Set) remove(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.locks.remove(h)
}

// On returns the locks that are held under a lease.
func (hs *Set) On(l *heartbeat.Lease) []*Lock {
	var out []*Lock
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for h := range sh.locks.all {
			if h.Lease() == l {
				out = append(out, h)
			}
		}
		sh.mu.Unlock()
	}
	return out
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
