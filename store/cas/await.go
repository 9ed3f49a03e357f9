package cas

import (
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// awaited says for what this instance needs letters about a key, by a record of this version.
type awaited struct {
	version int64
	waits   map[store.AttemptID]struct{}
	watches bool
}

// await notes from the record of a turn who waits or watches here. The caller holds s.mu.
func (s *Store) await(t *turn, version int64) {
	if _, polls := s.backend.(Expecter); !polls {
		return
	}
	if t.job.forget {
		delete(s.awaited, t.job.name)
		return
	}
	now := awaited{version: version, waits: map[store.AttemptID]struct{}{}}
	mine := func(by int) bool { return by > 0 && t.next.Instances[by-1].Name == s.me.Name }
	for _, of := range [][]key.RecordWaiter{t.next.Waiters, t.next.Skipped} {
		for i := range of {
			if mine(of[i].By) {
				now.waits[of[i].Attempt] = struct{}{}
			}
		}
	}
	for _, w := range t.next.Watchers {
		now.watches = now.watches || mine(w.By)
	}
	switch known, found := s.awaited[t.job.name]; {
	case found && known.version > version: // another call has seen a later record
	case len(now.waits) == 0 && !now.watches:
		delete(s.awaited, t.job.name)
	default:
		s.awaited[t.job.name] = now
	}
	s.attend()
}

// wereTold notes that a letter has told waiters of this instance what became of them.
func (s *Store) wereTold(name string, notes []note) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, found := s.awaited[name]
	if !found {
		return
	}
	for i := range notes {
		delete(a.waits, notes[i].ID)
	}
	if len(a.waits) == 0 && !a.watches {
		delete(s.awaited, name)
	}
	s.attend()
}

// Keeping notes whether keys may be kept here, so that the backend hears of recalls, if that costs little.
func (s *Store) Keeping(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping = on
	s.attend()
}

// attend tells a backend that looks for letters how soon they are needed. The caller holds s.mu.
func (s *Store) attend() {
	if polls, ok := s.backend.(Expecter); ok {
		if len(s.own) == 0 {
			clear(s.awaited) // nobody waits without a lease
		}
		polls.Expect(len(s.awaited) > 0, s.keeping, len(s.own) > 0)
	}
}
