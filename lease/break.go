package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// AskToStop asks the holder of a key to stop what it does under the lock. reason is for people; nil: none.
// Errors: [NotHeldError], [ErrCallerLeft], [ErrDraining] after Stop, and those of the store.
func (m *Manager) AskToStop(ctx context.Context, key string, reason *string) error {
	held, err := m.signals.Send(ctx, store.Signal{Kind: store.Stop, Key: key, Reason: reason})
	switch {
	case err != nil:
		return err
	case !held:
		return &types.NotHeldError{Key: key}
	}
	m.obs.StopSent(ctx, key, m.cfg.Instance)
	return nil
}

// Break takes a lock from its holder: the grant that was names, as returned by [Manager.Get], and no
// other. It returns when that grant is over, at the latest when its lease ends. Errors: [NotHeldError],
// [ErrCallerLeft] (it is broken all the same), [ErrDraining] after Stop, and those of the store.
func (m *Manager) Break(ctx context.Context, was store.Lock) error {
	if !was.Held {
		return &types.NotHeldError{Key: was.Key}
	}
	if h := m.holdings.Get(was.Key); h != nil && h.Token == was.Token {
		if err := m.acquirer.Tell(ctx, h); err != nil {
			return err
		}
	}
	held, err := m.signals.Send(ctx, store.Signal{Kind: store.Break, Key: was.Key, Token: was.Token})
	if err != nil || !held {
		return err
	}
	return m.signals.AwaitOver(ctx, was)
}
