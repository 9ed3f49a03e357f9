package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Release frees locks, or hands them to the first living waiter.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return nil, err
	}
	o := s.operation()
	verdicts := make([]store.Verdict, len(claims))
	for i := range claims {
		o.release(&claims[i], &verdicts[i])
	}
	o.finish()
	return verdicts, nil
}

// ReleaseOne is Release for one lock.
func (s *Store) ReleaseOne(ctx context.Context, c store.Claim) (verdict store.Verdict, err error) {
	if err := s.usable(ctx, "Release"); err != nil {
		return store.Verdict{}, err
	}
	o := s.operation()
	o.release(&c, &verdict)
	o.finish()
	return verdict, nil
}

func (o *operation) release(c *store.Claim, v *store.Verdict) {
	sh, r := o.lock(c.Key)
	defer sh.unlock(r)
	*v = o.Release(&r.Row, c)
}

// Amend checks locks, and changes their data and remaining time.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Verdict, error) {
	if err := s.usable(ctx, "Amend"); err != nil {
		return nil, err
	}
	o := s.operation()
	verdicts := make([]store.Verdict, len(changes))
	for i := range changes {
		sh, r := o.lock(changes[i].Key)
		verdicts[i] = o.Amend(&r.Row, &changes[i])
		sh.unlock(r)
	}
	o.finish()
	return verdicts, nil
}
