package memory

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Stats counts the space's contents. It reads one shard after the other, so the result is not a snapshot.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	if err := s.usable(ctx, "Stats"); err != nil {
		return store.Stats{}, err
	}
	types, pods := counts{}, counts{}
	for name, ns := range s.ns.space.all() {
		for i := range ns.shards {
			ns.shards[i].count(name, ns.space, types, pods)
		}
	}
	return store.Stats{Types: types.lines(), Pods: pods.lines()}, nil
}

func (s *Space) all() map[string]*namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.namespaces)
}

func (sh *shard) count(namespace string, space *Space, types, pods counts) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := space.now()
	for k, r := range sh.rows {
		of := r.Count(now, func(pod string, held store.Stat) { pods.add(namespace, pod, held) })
		if of.Held+of.Expired+of.Waiting > 0 {
			types.add(namespace, store.TypeOf(k), of)
		}
	}
}

// counts are lines by their names.
type counts map[[2]string]store.Stat

func (t counts) add(namespace, name string, more store.Stat) {
	more.Namespace, more.Name = namespace, name
	line := [2]string{namespace, name}
	t[line] = more.Plus(t[line])
}

// lines returns the counts in their order. The last line sums those beyond the limit.
func (t counts) lines() []store.Stat {
	return store.Top(slices.Collect(maps.Values(t)), store.StatLines)
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
