package lease

import (
	"context"
	"errors"
)

var errLater = errors.New("not built yet")

// AcquireAll gets several locks, all or none; see Acquire. The keys are different;
// req.Key is ignored. The grants are in the order of the keys. Errors: those of
// Acquire, where a key that is not to be had is named, and [HoldsError].
func (m *Manager) AcquireAll(ctx context.Context, s *Session, keys []string, req Request) ([]Grant, error) {
	return nil, errLater
}

// Watch tells hear what happens to a key, until stop is called. It returns the key as
// it was when the watch took effect; what hear is told came after. hear must not block
// and must not call back; it is called from one goroutine at a time. Errors:
// [LimitError], [ErrAbandoned], [ErrDraining], and those of the store.
func (m *Manager) Watch(ctx context.Context, s *Session, key string, hear func(Event)) (v View, stop func(), err error) {
	return View{}, nil, errLater
}
