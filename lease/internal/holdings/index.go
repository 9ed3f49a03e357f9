package holdings

import (
	"hash/maphash"
	"iter"
	"sync"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
)

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

const shards = 64

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

// remove removes h unless a later grant of the key has replaced it.
func (hs *Set) remove(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.locks.remove(h)
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
