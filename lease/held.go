package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// heldLock is a lock of a session of this sidecar. bind:ttl locks are not kept
// here: any pod may release or extend them, so only the store knows. A sidecar may hold
// a hundred thousand: what few of them have stands apart, in terms and changes.
type heldLock struct {
	key   string
	token int64
	s     *Session
	under atomic.Pointer[heartbeat.Lease] // it is a user of that until it has letGo
	// acquiredAt is the store's time, in nanoseconds since 1970; since the local one, as
	// long after holdings began.
	acquiredAt  int64
	since       time.Duration
	traceparent string
	request     uuid.UUID // the id of the request that was granted it, zero: none
	*terms

	// read: the store has said that it is there, in the history in which its lease was last
	// verified.
	read atomic.Bool

	// What follows is guarded by s.mu.
	*changes
	// part: the app does not know of it, because its call has not been told yet, or is for
	// several keys and does not have all.
	unpublished bool
	letGo       bool
}

// lease is the one that the lock is held under.
func (h *heldLock) lease() *heartbeat.Lease { return h.under.Load() }

// letGoLocked ends the use of the lease: the lock is lost, or its release is settled. s.mu is held.
func (h *heldLock) letGoLocked() {
	h.letGo = true
	h.lease().Unpin()
}

// terms are what few locks were asked for with. The others share plain.
type terms struct {
	owner string
	// ttl is what was asked for, zero if its lease has the same: the app is told that it
	// may rely on the lock for so long, though the lease lasts longer.
	ttl time.Duration
	// until is when its MaxHold is over, zero for none; outlived fires then, and is
	// guarded by the session's mutex.
	until    time.Time
	outlived *time.Timer
	// minHold is that of the attempt that won it.
	minHold time.Duration
	// span is nil where the acquire is not recorded.
	span *observe.Hold
}

// changes are what happens to few locks while they are held, and their data, which few
// have. The others share unchanged; whoever changes something takes a copy with change.
type changes struct {
	data     []byte          // replaced, never changed
	stopping *store.Stopping // replaced, never changed
	// entered are the living entries, by number; nil: that of the grant alone.
	entered []entry
	// reentries is how often it was entered again.
	reentries int
}

var (
	plain     = &terms{}
	unchanged = &changes{}
)

// termsOf are the terms of a lock that was just granted.
func termsOf(w *won) *terms {
	shorter := w.req.TTL < w.lease.TTL()
	if w.req.Owner == "" && w.req.MaxHold == 0 && w.req.MinHold == 0 && !shorter {
		return withSpan(plain, w.span)
	}
	t := &terms{owner: w.req.Owner, until: w.until, minHold: w.req.MinHold}
	if shorter {
		t.ttl = w.req.TTL
	}
	return withSpan(t, w.span)
}

// withSpan returns the terms with a span, if there is one: a copy, for plain is shared.
func withSpan(t *terms, span *observe.Hold) *terms {
	if span == nil {
		return t
	}
	own := *t
	own.span = span
	return &own
}

// changesOf are those of a lock that was just granted with data, nil for none.
func changesOf(data []byte) *changes {
	if data == nil {
		return unchanged
	}
	return &changes{data: data}
}

// of reports whether s holds the lock.
func (h *heldLock) of(s *Session) bool { return h.s == s }

// acquired is when the lock was granted, by the store's clock.
func (h *heldLock) acquired() time.Time { return time.Unix(0, h.acquiredAt) }

// heldFor is how long it has been held now.
func (h *heldLock) heldFor(now time.Time) time.Duration { return now.Sub(h.s.set.began) - h.since }

// change returns what may be changed of h. s.mu is held.
func (h *heldLock) change() *changes {
	if h.changes == unchanged {
		own := *unchanged
		h.changes = &own
	}
	return h.changes
}

// valid reports whether the lock can be relied on now: its lease is trusted, and
// its MaxHold is not over. Every read asks.
func (h *heldLock) valid(t clock.Tick) bool {
	return h.lease().Alive(t) && !clock.Past(h.until, t.Now)
}

// remaining is how long the lock can be relied on if its lease is not renewed any
// more.
func (h *heldLock) remaining(t clock.Tick) time.Duration {
	left := h.lease().Remaining(t)
	if h.ttl != 0 {
		left = min(left, heartbeat.Reliable(h.ttl))
	}
	return untilAtMost(left, h.until, t.Now)
}

// untilAtMost is d, or what is left until then if that is less.
func untilAtMost(d time.Duration, until, now time.Time) time.Duration {
	if until.IsZero() {
		return d
	}
	return max(min(d, until.Sub(now)), 0)
}

// claim is how the store is told which lock is meant.
func (h *heldLock) claim() store.Claim {
	return store.Claim{Key: h.key, Token: h.token, Lease: h.lease().ID()}
}

// observed is what the log says of a lock.
func (h *heldLock) observed() observe.Lock {
	return observe.Lock{Key: h.key, Token: h.token, Session: h.s.name, Owner: h.owner, Traceparent: h.traceparent}
}

// lock is the lock as others see it, but for the calls that wait through other sidecars.
func (h *heldLock) lock() store.Lock {
	h.s.mu.Lock()
	data, stopping := h.data, h.stopping
	h.s.mu.Unlock()
	set, t := h.s.set, clock.Read(h.s.set.clk)
	return store.Lock{
		Key: h.key, Held: true, Token: h.token, QueueLength: set.cfg.QueueLength(h.key), Stopping: stopping,
		Holder: store.Holder{
			Instance: set.cfg.Instance, Pod: set.cfg.Pod, Session: h.s.name, Owner: h.owner,
			Lease: h.lease().ID(), Renewed: true,
			AcquiredAt: h.acquired(), HeldFor: h.heldFor(t.Now), ExpiresIn: h.remaining(t),
			Data: data, Traceparent: h.traceparent,
		},
	}
}

// setData notes the data of the lock, which the store has taken.
func (h *heldLock) setData(data []byte) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.change().data = data
}

// lose takes the lock from its session because its lease is lost, and the lock with it, and
// tells the app. It reports false when somebody else took it before.
func (h *heldLock) lose(reason types.LostReason) bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.loseLocked(h, reason)
}

// loseUnder is lose, unless the lock was moved to another lease.
func (h *heldLock) loseUnder(l *heartbeat.Lease, reason types.LostReason) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.lease() == l {
		h.s.loseLocked(h, reason)
	}
}

// moved makes h a user of the lease to which the store has moved it. It reports false if h has
// ended.
func (h *heldLock) moved(to *heartbeat.Lease) bool {
	h.s.mu.Lock()
	if h.letGo {
		h.s.mu.Unlock()
		return false
	}
	to.Pin() // the mover is one, so it is not closed
	old := h.under.Swap(to)
	h.s.mu.Unlock()
	old.Unpin()
	if to.Lost() { // the one who lost it may not have seen h there
		h.loseUnder(to, to.LossReason())
	}
	return true
}

const heldShards = 64

// heldSet finds the locks that sessions of this sidecar hold by their keys. It
// is sharded, so that different keys rarely meet on a mutex.
type heldSet struct {
	seed   maphash.Seed
	shards [heldShards]heldShard
}

type heldShard struct {
	mu sync.Mutex
	m  map[string]*heldLock
}

func newHeldSet() *heldSet {
	hs := &heldSet{seed: maphash.MakeSeed()}
	for i := range hs.shards {
		hs.shards[i].m = make(map[string]*heldLock)
	}
	return hs
}

func (hs *heldSet) shard(key string) *heldShard {
	return &hs.shards[maphash.String(hs.seed, key)%heldShards]
}

func (hs *heldSet) get(key string) *heldLock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.m[key]
}

// put returns the lock that was there before under the same key, or nil.
func (hs *heldSet) put(h *heldLock) *heldLock {
	sh := hs.shard(h.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	before := sh.m[h.key]
	sh.m[h.key] = h
	return before
}

// remove takes h out unless a later grant of the key has replaced it.
func (hs *heldSet) remove(h *heldLock) {
	sh := hs.shard(h.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.m[h.key] == h {
		delete(sh.m, h.key)
	}
}

// on returns the locks that are held under a lease.
func (hs *heldSet) on(l *heartbeat.Lease) []*heldLock {
	var out []*heldLock
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for _, h := range sh.m {
			if h.lease() == l {
				out = append(out, h)
			}
		}
		sh.mu.Unlock()
	}
	return out
}

// shownTypes is how many types of held locks are counted apart: more than the metrics tell
// apart, but not one for each key.
const shownTypes = 1000

// count counts the locks by the type of their keys, and tells how long the one is held that
// is held longest; zero if none is. now is how long after they began. Counting at each
// reading of the metrics costs less than counting at each call.
func (hs *heldSet) count(now time.Duration) (byType map[string]int64, longest time.Duration) {
	byType = make(map[string]int64)
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for _, h := range sh.m {
			name := store.TypeOf(h.key)
			if _, known := byType[name]; !known && len(byType) >= shownTypes {
				name = store.Others
			}
			byType[name]++
			longest = max(longest, now-h.since)
		}
		sh.mu.Unlock()
	}
	return byType, longest
}
