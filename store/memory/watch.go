package memory

import (
	"bytes"
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/store"
)

var errLeaseLost = errors.New("the lease has ended")

// Watch sends events of keys to this instance. It fails if the lease has ended.
func (s *Store) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	if err := s.usable(ctx, "Watch"); err != nil {
		return err
	}
	l := s.ns.leases.get(lease)
	if l == nil || !l.alive(s.ns.space.now()) {
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	for _, key := range keys {
		s.watch(key, l)
	}
	if l.dead() { // a reap may have passed before the watch was added
		s.unwatch(keys, l)
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	return nil
}

func (s *Store) watch(key string, l *lease) {
	sh := s.ns.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.row(key)
	if r.watchers == nil {
		r.watchers = map[*Store]*lease{}
	}
	r.watchers[s] = l
	sh.visited[r] = struct{}{}
}

// Unwatch ends the watch of keys.
func (s *Store) Unwatch(ctx context.Context, keys []string) error {
	if err := s.usable(ctx, "Unwatch"); err != nil {
		return err
	}
	s.unwatch(keys, nil)
	return nil
}

// unwatch ends the watches of this instance, or with a lease only those under it.
func (s *Store) unwatch(keys []string, under *lease) {
	for _, key := range keys {
		sh := s.ns.shard(key)
		sh.mu.Lock()
		if r := sh.rows[key]; r != nil && (under == nil || r.watchers[s] == under) {
			delete(r.watchers, s)
			r.tidy()
		}
		sh.mu.Unlock()
	}
}

// event sends an event of the grant with this token to the key's watchers.
func (o *operation) event(r *row, token int64, e store.Event) {
	for s := range r.watchers {
		told := e
		told.Key, told.Token = r.key, token
		o.news = append(o.news, delivery{s, store.News{Event: &told}})
	}
}

func (o *operation) released(r *row, h *holder, outcome store.ReleaseOutcome, result []byte) {
	if r.watchers != nil {
		o.event(r, h.token, store.Event{Kind: store.EventReleased, Outcome: outcome, Result: bytes.Clone(result)})
	}
}
