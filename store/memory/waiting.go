package memory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Waiting reads waiters. It reads one key after the other, so the result is not a snapshot.
func (s *Store) Waiting(ctx context.Context, q store.WaitQuery) ([]store.Waiting, error) {
	if err := s.usable(ctx, "Waiting"); err != nil {
		return nil, err
	}
	q.Limit = max(1, q.Limit)
	var found []store.Waiting
	for _, key := range s.ns.contended(&q) {
		if found = append(found, s.ns.waiting(key, &q)...); len(found) >= q.Limit {
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
			if r.queue.len() > 0 && r.key >= q.After.Key && strings.HasPrefix(r.key, q.Prefix) && (q.Key == "" || q.Key == r.key) {
				keys = append(keys, r.key)
			}
		}
		sh.mu.Unlock()
	}
	slices.Sort(keys)
	return keys
}

func (ns *namespace) waiting(key string, q *store.WaitQuery) (found []store.Waiting) {
	sh := ns.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.rows[key]
	if r == nil {
		return nil
	}
	now := ns.space.now()
	for i, w := range r.queue.line {
		if len(found) >= q.Limit {
			break
		}
		if !w.lease.alive(now) || key == q.After.Key && w.order <= q.After.Order {
			continue
		}
		found = append(found, store.Waiting{
			QueuePlace: store.QueuePlace{Key: key, Order: w.order}, Position: i + 1,
			Pod: w.by.id.Pod, Session: w.session, Owner: w.owner, Traceparent: w.traceparent,
			Shared: w.shared, Limit: w.limit, WaitingFor: time.Duration(now.at - w.since),
		})
	}
	return found
}
