package memory

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

var errLeaseLost = errors.New("the lease has ended")

// Watch sends events of keys to this instance. It fails if the lease has ended.
func (s *Store) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	if err := s.usable(ctx, "Watch"); err != nil {
		return err
	}
	l := s.ns.leases.get(lease)
	if l == nil || !l.Alive(s.ns.space.now()) {
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	o := s.operation()
	for _, k := range keys {
		sh, r := o.lock(k)
		o.Watch(&r.Row, l)
		sh.unlock(r)
	}
	if l.Dead() { // a reap may have passed before the watch was added
		s.unwatch(keys, l)
		return &store.Error{Op: "Watch", Err: errLeaseLost}
	}
	return nil
}

// Unwatch ends the watch of keys.
func (s *Store) Unwatch(ctx context.Context, keys []string) error {
	if err := s.usable(ctx, "Unwatch"); err != nil {
		return err
	}
	s.unwatch(keys, nil)
	return nil
}

// unwatch ends the watches of this instance, or with a lease only those under it.
func (s *Store) unwatch(keys []string, under *key.Lease) {
	o := s.operation()
	for _, k := range keys {
		sh, r := o.lock(k)
		o.Unwatch(&r.Row, under)
		sh.unlock(r)
	}
}
