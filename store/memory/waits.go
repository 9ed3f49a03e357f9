package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// Check returns what became of waiters.
func (s *Store) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "Check", waits, (*key.Op).Check)
}

// Cancel takes waiters out of their queues.
func (s *Store) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return s.eachAttempt(ctx, "Cancel", waits, (*key.Op).Cancel)
}

// Withdraw frees what attempts hold or wait for. In memory, the outcome of an attempt is always known.
func (s *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	answers, err := s.eachAttempt(ctx, "Withdraw", attempts, (*key.Op).Withdraw)
	outcomes := make([]store.Outcome, len(answers))
	for i, a := range answers {
		outcomes[i] = a.Outcome
	}
	return outcomes, err
}

func (s *Store) eachAttempt(ctx context.Context, op string, attempts []store.Attempt,
	do func(*key.Op, *key.Row, store.Attempt) store.Answer,
) ([]store.Answer, error) {
	if err := s.usable(ctx, op); err != nil {
		return nil, err
	}
	o := s.operation()
	answers := make([]store.Answer, len(attempts))
	for i, a := range attempts {
		sh, r := o.lock(a.Key)
		answers[i] = do(&o.Op, &r.Row, a)
		sh.unlock(r)
	}
	o.finish()
	return answers, nil
}
