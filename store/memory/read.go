package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

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
	for k, r := range sh.rows {
		if !p.wants(k) || !r.HeldAt(p.query.Instance, now) {
			continue
		}
		p.locks = append(p.locks, r.Lock(now))
		if len(p.locks) >= 2*p.query.Limit {
			p.cut()
		}
	}
}

func (p *page) wants(k string) bool {
	return k > p.query.After && (!p.full || k < p.last) && strings.HasPrefix(k, p.query.Prefix)
}

func (p *page) cut() {
	slices.SortFunc(p.locks, func(a, b store.Lock) int { return cmp.Compare(a.Key, b.Key) })
	if len(p.locks) >= p.query.Limit {
		clear(p.locks[p.query.Limit:])
		p.locks = p.locks[:p.query.Limit]
		p.full, p.last = true, p.locks[p.query.Limit-1].Key
	}
}

// Waiting reads waiters. It reads one key after the other, so the result is not a snapshot.
func (s *Store) Waiting(ctx context.Context, q store.WaitQuery) ([]store.Waiting, error) {
	if err := s.usable(ctx, "Waiting"); err != nil {
		return nil, err
	}
	q.Limit = max(1, q.Limit)
	var found []store.Waiting
	o := s.operation()
	for _, k := range s.ns.contended(&q) {
		sh, r := o.lock(k)
		found = append(found, r.Waiting(q.After, q.Limit, o.Now)...)
		sh.unlock(r)
		if len(found) >= q.Limit {
			return found[:q.Limit], nil
		}
	}
	return found, nil
}

// contended returns the keys of a query that have waiters, sorted.
func (ns *namespace) contended(q *store.WaitQuery) (keys []string) {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		for r := range sh.visited {
			if r.Queued() > 0 && r.Key >= q.After.Key && strings.HasPrefix(r.Key, q.Prefix) && (q.Key == "" || q.Key == r.Key) {
				keys = append(keys, r.Key)
			}
		}
		sh.mu.Unlock()
	}
	slices.Sort(keys)
	return keys
}
