package memory

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// Acquire takes each available key.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return nil, err
	}
	o := s.operation()
	answers := make([]store.Answer, len(asks))
	for i := range asks {
		o.ask(&asks[i], &answers[i])
	}
	o.finish()
	return answers, nil
}

// AcquireOne is Acquire for one key.
func (s *Store) AcquireOne(ctx context.Context, ask store.Ask) (answer store.Answer, err error) {
	if err := s.usable(ctx, "Acquire"); err != nil {
		return store.Answer{}, err
	}
	o := s.operation()
	o.ask(&ask, &answer)
	o.finish()
	return answer, nil
}

func (o *operation) ask(ask *store.Ask, answer *store.Answer) {
	var own *key.Lease
	if key.NeedsLease(ask) {
		own = o.ns.leases.get(ask.Lease)
	}
	sh, r := o.lock(ask.Key)
	defer sh.unlock(r)
	o.Ask(&r.Row, ask, own, answer)
}
