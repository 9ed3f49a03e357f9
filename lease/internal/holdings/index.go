package holdings

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/store"
)

const shards = 64

// index finds the locks of sessions by their keys. It is sharded, so that different keys rarely
// meet on a mutex.
type index struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu sync.Mutex
	m  map[string]*Lock
}

func newIndex() *index {
	hs := &index{seed: maphash.MakeSeed()}
	for i := range hs.shards {
		hs.shards[i].m = make(map[string]*Lock)
	}
	return hs
}

func (hs *index) shard(key string) *shard {
	return &hs.shards[maphash.String(hs.seed, key)%shards]
}

func (hs *index) get(key string) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.m[key]
}

// put returns the lock that was there before under the same key, or nil.
func (hs *index) put(h *Lock) *Lock {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	before := sh.m[h.Key]
	sh.m[h.Key] = h
	return before
}

// remove takes h out unless a later grant of the key has replaced it.
func (hs *index) remove(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.m[h.Key] == h {
		delete(sh.m, h.Key)
	}
}

func (hs *index) on(l *heartbeat.Lease) []*Lock {
	var out []*Lock
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for _, h := range sh.m {
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
func (hs *index) count(now time.Duration) (byType map[string]int64, longest time.Duration) {
	byType = make(map[string]int64)
	for i := range hs.shards {
		sh := &hs.shards[i]
		sh.mu.Lock()
		for _, h := range sh.m {
			name := store.TypeOf(h.Key)
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
