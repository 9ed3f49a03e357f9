package holdings

import (
	"hash/maphash"
	"iter"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/store"
)

const shards = 64

// lockMap finds locks by key and token. An exclusive lock is the only one of its key. The shares of a key
// have different tokens, and one session may hold several of them.
type lockMap struct {
	exclusive map[string]*Lock
	shares    map[string]map[int64]*Lock // nil until there is one
	shared    int                        // how many shares
}

func newLockMap() lockMap { return lockMap{exclusive: make(map[string]*Lock)} }

// count is how many locks there are.
func (m *lockMap) count() int { return len(m.exclusive) + m.shared }

// find is the lock of a key under a token, or nil.
func (m *lockMap) find(key string, token int64) *Lock {
	if h := m.exclusive[key]; h != nil && h.Token == token {
		return h
	}
	return m.shares[key][token]
}

// has reports whether h is here: not taken out, and not replaced by a later grant.
func (m *lockMap) has(h *Lock) bool {
	if h.IsShare() {
		return m.shares[h.Key][h.Token] == h
	}
	return m.exclusive[h.Key] == h
}

// over are the locks that have ended if h was granted. A lock that may be shared by now has not, if h is a
// share.
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

// remove takes h out. It reports false if h is not here.
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

// ofKey yields the locks of a key, of which several are shares.
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

// index finds the locks of sessions by their keys. It is sharded, so that different keys rarely
// meet on a mutex.
type index struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu    sync.Mutex
	locks lockMap
}

func newIndex() *index {
	hs := &index{seed: maphash.MakeSeed()}
	for i := range hs.shards {
		hs.shards[i].locks = newLockMap()
	}
	return hs
}

func (hs *index) shard(key string) *shard {
	return &hs.shards[maphash.String(hs.seed, key)%shards]
}

// get is the exclusive lock of a key, or nil.
func (hs *index) get(key string) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.exclusive[key]
}

func (hs *index) find(key string, token int64) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.find(key, token)
}

// put returns the locks that are over, because h was granted.
func (hs *index) put(h *Lock) (over []*Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	over = sh.locks.over(h)
	sh.locks.put(h)
	return over
}

// share makes an exclusive lock a share. The mutex of its session is held.
func (hs *index) share(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	was := sh.locks.remove(h)
	h.setTo(isShare, true)
	if was {
		sh.locks.put(h)
	}
}

// remove takes h out unless a later grant of the key has replaced it.
func (hs *index) remove(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.locks.remove(h)
}

func (hs *index) on(l *heartbeat.Lease) []*Lock {
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

// shownTypes is how many types of held locks are counted apart: more than in the metrics, but not
// one for each key.
const shownTypes = 1000

// count counts the locks by the type of their keys, and returns how long the oldest is held. now counts
// from when the set began. Counting at each reading of the metrics costs less than at each call.
func (hs *index) count(now time.Duration) (byType map[string]observe.HeldLocks, longest time.Duration) {
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
