package lease

import (
	"context"
	"errors"
)

var errLater = errors.New("not built yet")

// Watch tells hear what happens to a key, until stop is called. It returns the key as
// it was when the watch took effect; what hear is told came after. hear must not block
// and must not call back; it is called from one goroutine at a time. Errors:
// [LimitError], [ErrAbandoned], [ErrDraining], and those of the store.
func (m *Manager) Watch(ctx context.Context, s *Session, key string, hear func(Event)) (v View, stop func(), err error) {
	return View{}, nil, errLater
}
