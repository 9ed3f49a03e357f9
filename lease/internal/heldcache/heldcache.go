// Package heldcache remembers for a short time which keys are held.
package heldcache

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// Cache contains answers of the store that a key is held. An answer may be repeated for a short time, never
// after the holder's expiry. Every read checks that.
type Cache struct {
	ttl     time.Duration
	clk     clock.Clock
	cache   *lru.Cache[string, entry]
	seed    maphash.Seed
	stripes [256]stripe
}

// stripe contains a part of the keys.
type stripe struct {
	// version counts the changes of the part. An answer to a question from before a change is not kept.
	version atomic.Uint64
	// used: an answer was kept. Most sidecars rarely ask for held keys, and then need not read the shared cache.
	used atomic.Bool
}

// maxData limits the data of the holders of an answer. An answer with more is not kept, because it stays in memory until others push it out.
const maxData = 1 << 10

func dataOf(lock *store.Lock) (bytes int) {
	bytes = len(lock.Holder.Data)
	for i := range lock.Holders {
		bytes += len(lock.Holders[i].Data)
	}
	return bytes
}

type entry struct {
	lock  store.Lock
	at    time.Time
	until time.Time
}

// New makes a cache of at most size answers, each kept for at most ttl; zero turns it off. It fails if size
// is not above zero.
func New(size int, ttl time.Duration, clk clock.Clock) (*Cache, error) {
	cache, err := lru.New[string, entry](size)
	if err != nil {
		return nil, err
	}
	return &Cache{ttl: ttl, clk: clk, cache: cache, seed: maphash.MakeSeed()}, nil
}

func (c *Cache) stripe(key string) *stripe {
	return &c.stripes[maphash.String(c.seed, key)%uint64(len(c.stripes))]
}

// Version is an argument of Put. It must be read before the store is asked.
func (c *Cache) Version(key string) uint64 { return c.stripe(key).version.Load() }

// Put keeps the answer that lock.Key is held, unless the key has changed since the version. The age of the
// answer counts from the question, because the answer may have come late.
func (c *Cache) Put(lock store.Lock, version uint64, asked time.Time) {
	if c.ttl <= 0 || !lock.Held || dataOf(&lock) > maxData {
		return
	}
	c.stripe(lock.Key).used.Store(true) // before the versions are compared: see Drop
	c.cache.Add(lock.Key, entry{lock: lock, at: asked, until: asked.Add(min(c.ttl, lock.Holder.ExpiresIn))})
	if c.Version(lock.Key) != version {
		c.cache.Remove(lock.Key)
	}
}

// Get returns the holder of the key, with its remaining time from now.
func (c *Cache) Get(key string) (store.Lock, bool) {
	if c.ttl <= 0 || !c.stripe(key).used.Load() {
		return store.Lock{}, false
	}
	e, ok := c.cache.Get(key)
	if !ok {
		return store.Lock{}, false
	}
	now := c.clk.Now()
	if !now.Before(e.until) {
		c.cache.Remove(key)
		return store.Lock{}, false
	}
	return e.lock.Aged(now.Sub(e.at)), true
}

// Drop deletes the answer about a key that has changed.
func (c *Cache) Drop(key string) {
	s := c.stripe(key)
	s.version.Add(1)
	if s.used.Load() { // otherwise a concurrent Put finds another version
		c.cache.Remove(key)
	}
}
