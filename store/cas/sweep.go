package cas

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

const (
	// sweepTerm outlasts the pause between two sweeps of an instance, which is ten minutes.
	sweepTerm = 25 * time.Minute
	// forgetAfter is how long the record of a free key stays. No request is on its way for so long.
	forgetAfter = 5 * time.Minute
	// maxSightings limits the memory of the instance that sweeps.
	maxSightings = 1 << 20
	// sweepPause is the pause after each page.
	sweepPause = 20 * time.Millisecond
	// visited is the number of records that a visit swaps at once.
	visited = 200
)

// sightings remember which records of free keys an instance saw, so that it deletes only those that did not change
// for a while by its own clock.
type sightings struct {
	seed   maphash.Seed
	before map[uint64]sighting
	now    map[uint64]sighting
}

type sighting struct {
	version int64
	at      time.Time
}

// old notes a record, and reports whether it has been the same for long.
func (g *sightings) old(r *Record, now time.Time) bool {
	if g.seed == (maphash.Seed{}) {
		g.seed = maphash.MakeSeed()
	}
	id := maphash.String(g.seed, r.Key)
	seen, found := g.before[id]
	if !found || seen.version != r.Version {
		seen = sighting{r.Version, now}
	}
	if len(g.now) < maxSightings {
		g.now[id] = seen
	}
	return now.Sub(seen.at) >= forgetAfter
}

// Sweep settles records whose leases have died, and deletes those of keys that have been free for long.
func (s *Store) Sweep(ctx context.Context) error {
	const op = "Sweep"
	if s.cfg.SweepTerm > 0 {
		e, err := s.elect(ctx, op, s.electionOf("sweep/"+s.prefix), s.cfg.SweepTerm)
		if err != nil || !e.Elected {
			return err
		}
	}
	if !s.sweeper.TryLock() {
		return nil
	}
	defer s.sweeper.Unlock()
	g := &s.sweeping
	g.now = map[uint64]sighting{}
	defer func() { g.before, g.now = g.now, nil }()
	for after := ""; ; {
		p, err := s.page(ctx, op, s.prefix, after)
		if err != nil {
			return err
		}
		if err := s.sweepPage(ctx, op, p.turns); err != nil {
			return err
		}
		if after = p.last; after == "" {
			return nil
		}
		if err := s.pause(ctx, sweepPause); err != nil {
			return known(op, err)
		}
	}
}

func (s *Store) sweepPage(ctx context.Context, op string, turns []*turn) error {
	now := time.Now()
	var died []string
	var forgotten []*job
	for _, t := range turns {
		free := t.row.Forgettable(t.op.Now, math.MinInt64)
		dead := slices.ContainsFunc(t.rec.Leases, func(l key.RecordLease) bool { return !l.Dead && !t.job.states[l.ID].Alive })
		switch {
		case free && s.sweeping.old(t.job.rec, now):
			t.job.forget, t.job.locked = true, func() {}
			forgotten = append(forgotten, t.job)
		case !free && (dead || !t.row.HeldAt("", t.op.Now)):
			died = append(died, t.row.Key)
		}
	}
	if err := s.run(ctx, op, forgotten); err != nil {
		return err
	}
	return s.visit(ctx, op, died, func() {}) // the next sweep finds those that are locked
}

// visit settles the records of keys. locked is called for those that another session keeps locked; if it is nil, the
// visit fails then.
func (s *Store) visit(ctx context.Context, op string, names []string, locked func()) error {
	for some := range slices.Chunk(names, visited) {
		err := s.run(ctx, op, s.jobs(len(some), func(i int) string { return some[i] }, func(_ int, j *job) {
			j.locked = locked
			j.add(item{do: func(t *turn) bool {
				t.op.Settle(t.row)
				return true
			}})
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// naming returns the keys of this namespace whose records name one of these leases.
func (s *Store) naming(ctx context.Context, op string, leases []store.LeaseID) (names []string, err error) {
	for after := ""; ; {
		records, err := s.requests.Scan(ctx, s.prefix, after, pageSize)
		if err != nil {
			return nil, known(op, err)
		}
		for i := range records {
			if slices.ContainsFunc(records[i].Leases, func(id store.LeaseID) bool { return slices.Contains(leases, id) }) {
				name, _ := s.name(records[i].Key)
				names = append(names, name)
			}
		}
		if len(records) < pageSize {
			return names, nil
		}
		after = records[len(records)-1].Key
	}
}

// ReapInstance revokes the renewed leases of an instance that no longer runs.
func (s *Store) ReapInstance(ctx context.Context, instance string) error {
	const op = "ReapInstance"
	if err := s.usable(ctx, op); err != nil {
		return err
	}
	leases, err := s.requests.Opened(ctx, instance)
	if err != nil {
		return known(op, err)
	}
	if len(leases) == 0 {
		return nil
	}
	return s.revoke(ctx, op, leases)
}
