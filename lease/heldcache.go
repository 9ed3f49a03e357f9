package lease

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
)

// heldCache is the cache of what others hold: an answer of the store that a key is
// held may be given again for a short time, never past the holder's expiry. The
// deadline stands inside the entries and is checked on every read.
type heldCache struct {
	ttl     time.Duration
	clk     Clock
	cache   *lru.Cache[string, heldEntry]
	seed    maphash.Seed
	stripes [256]stripe
}

// stripe is a part of the keys.
type stripe struct {
	// heard counts what was heard of them. An answer that was on its way while something
	// was heard is too old to be kept.
	version atomic.Uint64
	// kept: there was something to be kept. Most sidecars hardly ever ask for what others
	// hold, and do not have to look into the cache, which all calls share.
	used atomic.Bool
}

type heldEntry struct {
	lock  store.Lock
	at    time.Time
	until time.Time
}

func newHeldCache(size int, ttl time.Duration, clk Clock) (*heldCache, error) {
	cache, err := lru.New[string, heldEntry](size)
	if err != nil {
		return nil, err
	}
	return &heldCache{ttl: ttl, clk: clk, cache: cache, seed: maphash.MakeSeed()}, nil
}

func (d *heldCache) stripe(key string) *stripe {
	return &d.stripes[maphash.String(d.seed, key)%uint64(len(d.stripes))]
}

// version is taken before the store is asked, for put.
func (d *heldCache) version(key string) uint64 { return d.stripe(key).version.Load() }

// put keeps the answer that lock.Key is held, unless something was heard of it
// since the mark was taken.
func (d *heldCache) put(lock store.Lock, mark uint64) {
	if d.ttl <= 0 || !lock.Held {
		return
	}
	now := d.clk.Now()
	d.stripe(lock.Key).used.Store(true) // before the mark is compared: see drop
	d.cache.Add(lock.Key, heldEntry{lock: lock, at: now, until: now.Add(min(d.ttl, lock.Holder.ExpiresIn))})
	if d.version(lock.Key) != mark {
		d.cache.Remove(lock.Key)
	}
}

// get returns who holds the key, with the times of now.
func (d *heldCache) get(key string) (store.Lock, bool) {
	if d.ttl <= 0 || !d.stripe(key).used.Load() {
		return store.Lock{}, false
	}
	e, ok := d.cache.Get(key)
	if !ok {
		return store.Lock{}, false
	}
	now := d.clk.Now()
	if !now.Before(e.until) {
		d.cache.Remove(key)
		return store.Lock{}, false
	}
	age := now.Sub(e.at)
	e.lock.Holder.HeldFor += age
	e.lock.Holder.ExpiresIn -= age
	return e.lock, true
}

// drop forgets what is known of a key, because something else was heard.
func (d *heldCache) drop(key string) {
	s := d.stripe(key)
	s.version.Add(1)
	if s.used.Load() { // else a put that comes now finds the mark moved
		d.cache.Remove(key)
	}
}

// grantRef names a grant as the app knows it.
type grantRef struct {
	key   string
	token int64
}

// grantEnd is what became of a grant.
type grantEnd struct {
	// lost is why, empty when it was released.
	lost LostReason
	// release is under way or done, when it was released.
	release *release
}
