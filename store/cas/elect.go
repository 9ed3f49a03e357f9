package cas

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// ownKeys is what the keys of the engine's own records begin with. No namespace is empty.
const ownKeys = "/"

func (s *Store) electionOf(what string) string { return ownKeys + what }

// Elect chooses the one instance that reads Stats for all instances, in all namespaces.
func (s *Store) Elect(ctx context.Context, term time.Duration) (store.Election, error) {
	return s.elect(ctx, "Elect", s.electionOf("stats"), term)
}

// elect chooses one instance. The record contains its name, and a lease that lasts for its term.
func (s *Store) elect(ctx context.Context, op, election string, term time.Duration) (store.Election, error) {
	if err := s.usable(ctx, op); err != nil {
		return store.Election{}, err
	}
	if term > 0 {
		s.mu.Lock()
		s.elected[election] = struct{}{} // also if the outcome is unknown
		s.mu.Unlock()
	}
	for round := 0; ; round++ {
		e, decided, err := s.vote(ctx, election, term)
		if err == nil && !decided {
			err = s.restBefore(ctx, round+1, nil)
		}
		if err != nil {
			return store.Election{}, Failed(op, err, store.OutcomeUnknown(err))
		}
		if decided && !e.Elected {
			s.mu.Lock()
			delete(s.elected, election)
			s.mu.Unlock()
		}
		if decided {
			return e, nil
		}
	}
}

// resign ends this instance's terms, so that others need not wait for their ends, and no lease is left.
func (s *Store) resign() {
	s.mu.Lock()
	elections := slices.Collect(maps.Keys(s.elected))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	for _, election := range elections {
		if _, err := s.elect(ctx, "Stop", election, 0); err != nil {
			s.log.Debug("this sidecar was elected, and could not resign", "election", election, "error", err)
		}
	}
}

// vote tries it once.
func (s *Store) vote(ctx context.Context, election string, term time.Duration) (e store.Election, decided bool, err error) {
	records, _, err := s.requests.Load(ctx, []string{election}, nil)
	if err != nil {
		return e, false, Failed("", err, false)
	}
	r := records[0]
	mine := string(r.Data) == s.me.Name
	if len(r.States) > 0 && r.States[0].Alive && !mine {
		return store.Election{Left: r.States[0].Left}, true, nil
	}
	if term <= 0 && (!mine || r.Version == 0) {
		return e, true, nil
	}
	w := Swap{Key: election, Version: r.Version, Delete: true}
	if term > 0 {
		id := uuid.New()
		if _, err := s.requests.OpenLeases(ctx, []NewLease{{NewLease: store.NewLease{ID: id, TTL: term}}}); err != nil {
			return e, false, Failed("", err, false)
		}
		w = Swap{Key: election, Version: r.Version, Data: []byte(s.me.Name), Leases: []store.LeaseID{id}, Living: []store.LeaseID{id}}
		e = store.Election{Elected: true, Left: term}
	}
	done, err := s.requests.Swap(ctx, []Swap{w})
	if err != nil {
		return e, false, err
	}
	if done[0].Done {
		s.discard(r.Leases...)
	} else {
		s.discard(w.Leases...)
	}
	return e, done[0].Done, nil
}
