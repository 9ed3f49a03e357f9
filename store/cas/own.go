package cas

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// ownLease is a renewed lease that this instance opened and has not revoked.
type ownLease struct {
	ttl time.Duration
	// history is the one in which the lease was opened.
	history store.History
	// until is when the lease ends if nobody renews it, by this instance's clock, or earlier.
	until time.Time
	// keys are those whose records may name the lease: this instance holds, awaits or watches them. With each key is the
	// least version of a record that tells whether this is so. An older record may have been read before.
	keys map[string]int64
}

// opened notes leases whose opening was asked for at that time.
func (s *Store) opened(leases []store.NewLease, sent time.Time, history store.History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		if s.own[l.ID] == nil {
			s.own[l.ID] = &ownLease{history: history, keys: map[string]int64{}}
		}
		s.own[l.ID].ttl, s.own[l.ID].until = l.TTL, sent.Add(l.TTL)
	}
	s.attend()
}

// noteRenewal notes which of these leases were renewed. It reports whether there are signals under them, and which of them were
// opened in another history.
func (s *Store) noteRenewal(leases, renewed []store.LeaseID, sent time.Time, history store.History) (signals bool, old []store.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range leases {
		l := s.own[id]
		switch {
		case l == nil:
		case !slices.Contains(renewed, id):
			l.until = time.Time{}
		default:
			l.until = sent.Add(l.ttl)
			if l.history != history {
				old = append(old, id)
			}
			for name := range s.signalled {
				_, mine := l.keys[name]
				signals = signals || mine
			}
		}
	}
	return signals, old
}

// state returns the state of a lease: as it was read for this job, or as this instance believes it to be.
func (s *Store) state(j *job, id store.LeaseID) (state LeaseState, known bool) {
	if state, known = j.states[id]; known {
		return state, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.own[id]; l != nil {
		if left := time.Until(l.until); left > 0 {
			return LeaseState{Alive: true, Left: left}, true
		}
	}
	return LeaseState{}, false
}

func (s *Store) ttl(id store.LeaseID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.own[id]; l != nil {
		return l.ttl
	}
	return 0
}

// expect notes which own leases the record of a turn names if its swap is carried out.
func (s *Store) expect(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range t.next.Leases {
		if own := s.own[l.ID]; own != nil {
			own.keys[t.job.name] = max(own.keys[t.job.name], t.job.rec.Version+1)
		}
	}
}

// unexpect forgets what expect noted for swaps that were certainly not carried out, if their keys had no records. Otherwise each new
// key that a server refuses would be noted until the lease ends.
func (s *Store) unexpect(turns ...*turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range turns {
		name := t.job.name
		if t.job.rec.Version != 0 || len(s.doubted[name]) > 0 {
			continue
		}
		for _, l := range t.next.Leases {
			if own := s.own[l.ID]; own != nil && own.keys[name] == 1 {
				delete(own.keys, name)
			}
		}
	}
}

// remembered is a record that this instance remembers. read is what its data says, or nil. Nobody changes either.
type remembered struct {
	Record
	read *key.Record
}

// cacheRecord remembers a record as the server has it.
func (s *Store) cacheRecord(r *Record, read *key.Record) {
	if r.Version == 0 || len(r.Data) > cachedBytes {
		s.cache.Remove(r.Key)
	} else {
		s.cache.Add(r.Key, &remembered{Record{Key: r.Key, Version: r.Version, Base: r.Base, Tokens: r.Tokens, Data: r.Data, Leases: r.Leases}, read})
	}
}

// learn notes what the record of a turn that is done says about this instance: what its leases hold, who waits, and what became of a
// swap with an unknown outcome. version is that of the record, which may be older than what other calls noted meanwhile.
func (s *Store) learn(t *turn, version int64) {
	s.mu.Lock()
	name, old := t.job.name, false
	for id, l := range s.own {
		switch since, noted := l.keys[name]; {
		case slices.ContainsFunc(t.next.Leases, func(n key.RecordLease) bool { return n.ID == id }):
			l.keys[name] = max(since, version)
		case noted && since <= version:
			delete(l.keys, name)
		default:
			old = old || noted
		}
	}
	if slices.ContainsFunc(t.next.Signals, func(g key.RecordSignal) bool { return s.own[t.next.Leases[g.Lease-1].ID] != nil }) {
		s.signalled[name] = struct{}{}
	} else if !old {
		delete(s.signalled, name)
	}
	s.await(t, version)
	decided := s.decided(name, version)
	s.mu.Unlock()
	if decided {
		s.report(store.EveryWait) // what the lost answer would have told may be among these
	}
}

// decided reports whether a record of this version shows what became of a swap with an unknown outcome, and forgets
// such swaps. Until the version has changed, the swap may still be carried out. The caller holds s.mu.
func (s *Store) decided(name string, version int64) bool {
	before := len(s.doubted[name])
	open := slices.DeleteFunc(s.doubted[name], func(assumed int64) bool { return assumed < version })
	if s.doubted[name] = open; len(open) == 0 {
		delete(s.doubted, name)
	}
	return len(open) < before
}

// doubt notes keys whose swaps may have been carried out.
func (s *Store) doubt(turns []*turn) {
	for _, t := range turns {
		s.expect(t) // another swap may have been refused meanwhile
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range turns {
		s.cache.Remove(t.job.key)
		s.doubted[t.job.name] = append(s.doubted[t.job.name], t.job.rec.Version)
	}
}

// under returns the keys whose records may name these leases, if this instance opened all of them. forget: the
// leases are over.
func (s *Store) under(leases []store.LeaseID, forget bool) (names []string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]struct{}{}
	all = true
	for _, id := range leases {
		l := s.own[id]
		if l == nil {
			all = false
			continue
		}
		for name := range l.keys {
			found[name] = struct{}{}
		}
		if forget {
			delete(s.own, id)
		}
	}
	for name := range found {
		names = append(names, name)
	}
	if forget {
		s.attend()
	}
	slices.Sort(names)
	return names, all
}

// everyKey notes that there may be signals under each own lease, because letters about them may be lost.
func (s *Store) everyKey() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.own {
		for name := range l.keys {
			s.signalled[name] = struct{}{}
		}
	}
}
