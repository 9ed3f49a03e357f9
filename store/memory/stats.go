package memory

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Stats counts the space's contents. It reads one shard after the other, so the result is not a snapshot.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	if err := s.usable(ctx, "Stats"); err != nil {
		return store.Stats{}, err
	}
	types, pods := store.Counts{}, store.Counts{}
	for name, ns := range s.ns.space.all() {
		for i := range ns.shards {
			ns.shards[i].count(name, ns.space, types, pods)
		}
	}
	return store.Stats{Types: types.Lines(), Pods: pods.Lines()}, nil
}

func (s *Space) all() map[string]*namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.namespaces)
}

func (sh *shard) count(namespace string, space *Space, types, pods store.Counts) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := space.now()
	for k, r := range sh.rows {
		of := r.Count(now, func(pod string, held store.Stat) { pods.Add(namespace, pod, held) })
		if of.Held+of.Expired+of.Waiting > 0 {
			types.Add(namespace, store.TypeOf(k), of)
		}
	}
}

// office records which instance reads Stats for all instances of a space.
type office struct {
	mu       sync.Mutex
	instance string
	until    int64 // on the space's clock
}

// Elect chooses the one instance of the space that reads Stats for all.
func (s *Store) Elect(ctx context.Context, term time.Duration) (store.Election, error) {
	if err := s.usable(ctx, "Elect"); err != nil {
		return store.Election{}, err
	}
	o := &s.ns.space.office
	o.mu.Lock()
	defer o.mu.Unlock()
	now, mine := s.ns.space.now().At, o.instance == s.id.Instance
	e := store.Election{Elected: term > 0 && (mine || o.until <= now)}
	switch {
	case e.Elected:
		o.instance, o.until = s.id.Instance, now+int64(term)
	case mine:
		o.until = 0
	}
	e.Left = time.Duration(max(0, o.until-now))
	return e, nil
}
