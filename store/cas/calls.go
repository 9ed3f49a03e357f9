package cas

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// full is a key as the backend knows it, and name as callers know it.
func (s *Store) full(name string) string { return s.prefix + name }

func (s *Store) name(full string) (name string, mine bool) { return strings.CutPrefix(full, s.prefix) }

// jobs makes a job for each different key of a call.
func (s *Store) jobs(n int, name func(int) string, each func(i int, j *job)) []*job {
	all, jobs, byName := make([]job, 0, n), make([]*job, 0, n), make(map[string]*job, n)
	for i := range n {
		j := byName[name(i)]
		if j == nil {
			all = append(all, job{key: s.full(name(i)), name: name(i)})
			j = &all[len(all)-1]
			byName[j.name] = j
			jobs = append(jobs, j)
		}
		each(i, j)
	}
	return jobs
}

// Acquire takes keys that are available.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	answers := make([]store.Answer, len(asks))
	jobs := s.jobs(len(asks), func(i int) string { return asks[i].Key }, func(i int, j *job) { j.addAcquire(&asks[i], &answers[i]) })
	return answers, s.run(ctx, "Acquire", jobs)
}

// Enqueue takes keys that are available, and queues the other asks.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	answers := make([]store.Answer, len(asks))
	jobs := s.jobs(len(asks), func(i int) string { return asks[i].Key }, func(i int, j *job) { j.addAsk(&asks[i], &answers[i], true, (*turn).enqueue) })
	return answers, s.run(ctx, "Enqueue", jobs)
}

// addAcquire adds an ask that does not wait.
func (j *job) addAcquire(ask *store.Ask, answer *store.Answer) {
	j.addAsk(ask, answer, key.AcquireNeedsLease(ask), func(t *turn, ask *store.Ask, own *key.Lease, answer *store.Answer) {
		t.op.Acquire(t.row, ask, own, answer)
	})
}

// addAsk adds an ask. If the state of the lease that it needs is not known, the turn is repeated with it.
func (j *job) addAsk(ask *store.Ask, answer *store.Answer, needsLease bool, do func(*turn, *store.Ask, *key.Lease, *store.Answer)) {
	j.blind = true
	if needsLease {
		j.leases = append(j.leases, ask.Lease)
	}
	j.add(item{ask: true, answer: answer, final: true, do: func(t *turn) bool {
		*answer = store.Answer{}
		var own *key.Lease
		if needsLease {
			var known bool
			if own, known = t.own(ask.Lease); !known {
				return false
			}
		}
		do(t, ask, own, answer)
		return true
	}})
}

// AcquireAndRelease carries out both with the same requests.
func (s *Store) AcquireAndRelease(ctx context.Context, asks []store.Ask, claims []store.Claim) (answers []store.Answer, acquireErr error, verdicts []store.Verdict, releaseErr error) {
	answers, verdicts = make([]store.Answer, len(asks)), make([]store.Verdict, len(claims))
	jobs := s.jobs(len(claims)+len(asks), func(i int) string {
		if i < len(claims) {
			return claims[i].Key
		}
		return asks[i-len(claims)].Key
	}, func(i int, j *job) {
		if i < len(claims) {
			j.release(&claims[i], &verdicts[i])
		} else {
			j.addAcquire(&asks[i-len(claims)], &answers[i-len(claims)])
		}
	})
	err := s.run(ctx, "AcquireAndRelease", jobs)
	return answers, err, verdicts, err
}

// release adds a claim.
func (j *job) release(claim *store.Claim, verdict *store.Verdict) {
	j.add(item{status: &verdict.Status, final: true, do: func(t *turn) bool {
		*verdict = t.op.Release(t.row, claim)
		return true
	}})
}

// enqueue writes the answer to an ask that waits. If there is no place for it in the queue, it asks without a wait.
func (t *turn) enqueue(ask *store.Ask, own *key.Lease, answer *store.Answer) {
	if !t.full && t.row.Queued() < t.s.cfg.LongestQueue || t.queued(ask.ID) {
		t.op.Enqueue(t.row, ask, own, answer)
		return
	}
	if t.op.Acquire(t.row, ask, own, answer); answer.Outcome == store.Held || answer.Outcome == store.Quiet {
		answer.Outcome = store.QueueFull
	}
}

// queued reports whether an attempt waited, or was skipped, before this turn.
func (t *turn) queued(id store.AttemptID) bool {
	same := func(w key.RecordWaiter) bool { return w.Attempt == id }
	return slices.ContainsFunc(t.rec.Waiters, same) || slices.ContainsFunc(t.rec.Skipped, same)
}

// attempts does something with each attempt.
func (s *Store) attempts(ctx context.Context, op string, attempts []store.Attempt, bump bool,
	locked store.Outcome, do func(*turn, store.Attempt) store.Answer,
) ([]store.Answer, error) {
	answers := make([]store.Answer, len(attempts))
	jobs := s.jobs(len(attempts), func(i int) string { return attempts[i].Key }, func(i int, j *job) {
		a, answer := attempts[i], &answers[i]
		j.bump = bump
		j.add(item{answer: answer, final: true, locked: func() { *answer = store.Answer{Outcome: locked} }, do: func(t *turn) bool {
			*answer = do(t, a)
			return true
		}})
	})
	return answers, s.run(ctx, op, jobs)
}

// Check returns what became of waiters. If a record is locked, there is no news yet.
func (s *Store) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.attempts(ctx, "Check", waits, false, store.Queued, func(t *turn, a store.Attempt) store.Answer { return t.op.Check(t.row, a) })
}

// Cancel takes waiters out of their queues.
func (s *Store) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.attempts(ctx, "Cancel", waits, false, store.RowLocked, func(t *turn, a store.Attempt) store.Answer { return t.op.Cancel(t.row, a) })
}

// Withdraw frees what attempts hold or wait for. It changes the version of the record in any case. So a swap of the
// attempt that is still on its way fails.
func (s *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	answers, err := s.attempts(ctx, "Withdraw", attempts, true, store.RowLocked, func(t *turn, a store.Attempt) store.Answer { return t.op.Withdraw(t.row, a) })
	outcomes := make([]store.Outcome, len(answers))
	for i, a := range answers {
		outcomes[i] = a.Outcome
	}
	return outcomes, err
}

// Release frees locks, or hands them to the first living waiter.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	verdicts := make([]store.Verdict, len(claims))
	jobs := s.jobs(len(claims), func(i int) string { return claims[i].Key }, func(i int, j *job) { j.release(&claims[i], &verdicts[i]) })
	return verdicts, s.run(ctx, "Release", jobs)
}

// Amend checks locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.amend(ctx, "Amend", len(changes), func(i int) string { return changes[i].Key },
		func(t *turn, i int) store.Amended { return t.op.Amend(t.row, &changes[i]) })
}

// Downgrade amends locks, and turns exclusive ones into shares.
func (s *Store) Downgrade(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.amend(ctx, "Downgrade", len(changes), func(i int) string { return changes[i].Key },
		func(t *turn, i int) store.Amended { return t.op.Downgrade(t.row, &changes[i]) })
}

// Adopt makes the last served waiters of cohorts the holders that the store knows.
func (s *Store) Adopt(ctx context.Context, adoptions []store.Adoption) ([]store.Amended, error) {
	return s.amend(ctx, "Adopt", len(adoptions), func(i int) string { return adoptions[i].Key },
		func(t *turn, i int) store.Amended { return t.op.Adopt(t.row, &adoptions[i]) })
}

// amend changes n locks. do changes the i-th of them.
func (s *Store) amend(ctx context.Context, op string, n int, keyOf func(i int) string, do func(t *turn, i int) store.Amended) ([]store.Amended, error) {
	amended := make([]store.Amended, n)
	jobs := s.jobs(n, keyOf, func(i int, j *job) {
		a := &amended[i]
		j.add(item{status: &a.Status, lock: &a.Lock, do: func(t *turn) bool {
			*a = do(t, i)
			return true
		}})
	})
	return amended, s.run(ctx, op, jobs)
}

// Get reads locks. If a holder has died and somebody waits, it first hands the key on: readers must not see a free
// key that has waiters, except in a quiet time.
func (s *Store) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	locks := make([]store.Lock, len(keys))
	jobs := s.jobs(len(keys), func(i int) string { return keys[i] }, func(i int, j *job) {
		j.reads = true
		lock := &locks[i]
		j.add(item{lock: lock, do: func(t *turn) bool {
			*lock = t.op.Get(t.row)
			return true
		}})
	})
	return locks, s.run(ctx, "Get", jobs)
}

// Signal sends requests to the present holders of keys.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	statuses := make([]store.ClaimStatus, len(signals))
	jobs := s.jobs(len(signals), func(i int) string { return signals[i].Key }, func(i int, j *job) {
		g, status := signals[i], &statuses[i]
		j.add(item{status: status, do: func(t *turn) bool {
			*status = t.op.Signal(t.row, g)
			return true
		}})
	})
	return statuses, s.run(ctx, "Signal", jobs)
}

// Signals returns the requests to holders under these leases of this instance. It reads each key that they hold,
// because a letter about a signal may still be on its way. Signals are rare.
func (s *Store) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	names, _ := s.under(leases, false)
	found := make([][]store.Signal, len(names))
	jobs := s.jobs(len(names), func(i int) string { return names[i] }, func(i int, j *job) {
		j.add(item{do: func(t *turn) bool {
			found[i] = nil
			for _, l := range t.leases {
				if slices.Contains(leases, l.ID()) && l.Alive(t.op.Now) {
					found[i] = append(found[i], l.Signals()...)
				}
			}
			return true
		}})
	})
	if err := s.run(ctx, "Signals", jobs); err != nil {
		return nil, err
	}
	all := slices.Concat(found...)
	slices.SortFunc(all, func(a, b store.Signal) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// Acknowledge forgets signals to holders of this instance.
func (s *Store) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	s.mu.Lock()
	var names []string
	for name := range s.signalled {
		names = append(names, name)
	}
	s.mu.Unlock()
	if len(signals) == 0 {
		names = nil
	}
	slices.Sort(names)
	return s.run(ctx, "Acknowledge", s.jobs(len(names), func(i int) string { return names[i] }, func(_ int, j *job) {
		j.add(item{do: func(t *turn) bool {
			for _, l := range t.leases {
				l.Acknowledge(signals)
			}
			return true
		}})
	}))
}

// nextSignal returns the id of a signal: microseconds since 1970, and a part that tells instances apart.
func (s *Store) nextSignal() store.SignalID {
	for {
		last := s.lastSignal.Load()
		id := max(last+1, time.Now().UnixMicro()<<partBits|s.part)
		if s.lastSignal.CompareAndSwap(last, id) {
			return store.SignalID(id)
		}
	}
}

// partBits is the size of a part that tells instances apart.
const partBits = 10

var errLeaseLost = errors.New("the lease has ended")

// Watch sends events of keys to this instance. It fails if the lease has ended.
func (s *Store) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	lost := false
	err := s.run(ctx, "Watch", s.jobs(len(keys), func(i int) string { return keys[i] }, func(_ int, j *job) {
		j.leases = []store.LeaseID{lease}
		j.add(item{do: func(t *turn) bool {
			own, known := t.own(lease)
			if own != nil {
				t.op.Watch(t.row, own)
			}
			lost = lost || known && own == nil
			return known
		}})
	}))
	if err == nil && lost {
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	return err
}

// Unwatch ends the watches of keys.
func (s *Store) Unwatch(ctx context.Context, keys []string) error {
	return s.run(ctx, "Unwatch", s.jobs(len(keys), func(i int) string { return keys[i] }, func(_ int, j *job) {
		j.add(item{do: func(t *turn) bool {
			t.op.Unwatch(t.row, nil)
			return true
		}})
	}))
}
