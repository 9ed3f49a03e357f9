package lease

import (
	"context"
	"errors"
)

var errLater = errors.New("not built yet")

// AskToStop asks whoever holds a key to stop what it does under the lock. reason is
// for people; nil: none. Errors: [NotHeldError], and those of the store.
func (m *Manager) AskToStop(ctx context.Context, key string, reason *string) error { return errLater }

// Break takes a lock from its holder, whoever it is, and returns when the key is no
// longer held under that grant: at the latest when the holder's lease ends. Errors:
// [NotHeldError], [ErrAbandoned], and those of the store.
func (m *Manager) Break(ctx context.Context, key string) error { return errLater }

// Watch tells hear what happens to a key, until stop is called. It returns the key as
// it was when the watch took effect; what hear is told came after. hear must not block
// and must not call back; it is called from one goroutine at a time. Errors:
// [LimitError], [ErrAbandoned], [ErrDraining], and those of the store.
func (m *Manager) Watch(ctx context.Context, s *Session, key string, hear func(Event)) (v View, stop func(), err error) {
	return View{}, nil, errLater
}
