package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

// Get reads locks.
func (s *Store) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	if err := s.usable(ctx, "Get"); err != nil {
		return nil, err
	}
	o := operation{ns: s.ns}
	locks := make([]store.Lock, len(keys))
	for i, key := range keys {
		locks[i] = o.get(key)
	}
	o.finish()
	return locks, nil
}

func (o *operation) get(key string) store.Lock {
	sh := o.ns.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.rows[key]
	if r == nil {
		return store.Lock{Key: key}
	}
	now := o.ns.space.now()
	if r.queue.len() > 0 && r.abandoned() {
		// A reap is under way elsewhere. Readers must not see a free key that has waiters.
		o.settle(r, now)
	}
	return r.lock(now)
}

// abandoned reports whether a holder is dead and no MinHold keeps the key.
func (r *row) abandoned() bool {
	for h := range r.holders() {
		if h.holdUntil == 0 && h.lease.dead() {
			return true
		}
	}
	return false
}

// List reads held locks in the order of their keys' bytes. It reads one shard after the other, so the
// result is not a snapshot.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Lock, error) {
	if err := s.usable(ctx, "List"); err != nil {
		return nil, err
	}
	p := page{query: q}
	p.query.Limit = max(1, q.Limit)
	for i := range s.ns.shards {
		p.collect(&s.ns.shards[i], s.ns.space)
	}
	p.cut()
	return p.locks, nil
}

// page collects the first locks of a list. It never stores more than twice the limit.
type page struct {
	query store.Query
	locks []store.Lock
	// full: keys after last do not belong to the page.
	full bool
	last string
}

func (p *page) collect(sh *shard, space *Space) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := space.now()
	for key, r := range sh.rows {
		if !p.wants(key) || !r.heldAt(p.query.Instance, now) {
			continue
		}
		p.locks = append(p.locks, r.lock(now))
		if len(p.locks) >= 2*p.query.Limit {
			p.cut()
		}
	}
}

// heldAt reports whether the key has a holder of this instance, or with an empty name of any instance.
func (r *row) heldAt(instance string, now moment) bool {
	for h := range r.holders() {
		if h.held(now) && (instance == "" || instance == h.by.id.Instance) {
			return true
		}
	}
	return false
}

func (p *page) wants(key string) bool {
	return key > p.query.After && (!p.full || key < p.last) && strings.HasPrefix(key, p.query.Prefix)
}

func (p *page) cut() {
	slices.SortFunc(p.locks, func(a, b store.Lock) int { return cmp.Compare(a.Key, b.Key) })
	if len(p.locks) >= p.query.Limit {
		clear(p.locks[p.query.Limit:])
		p.locks = p.locks[:p.query.Limit]
		p.full, p.last = true, p.locks[p.query.Limit-1].Key
	}
}
