package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// AskToStop asks the holders of a key to stop their work under the lock. If token is not 0, it asks only
// the holder with that token. reason is for people and may be nil. Errors: [NotHeldError], [ErrCallerLeft],
// [ErrDraining] after Stop, and those of the store.
func (m *Manager) AskToStop(ctx context.Context, key string, token int64, reason *string) error {
	limited, cancel := types.Within(ctx, "signal", m.cfg.StoreTimeout)
	defer cancel()
	if err := m.tell(limited, key, token); err != nil {
		return err
	}
	held, err := m.signals.Send(limited, store.Signal{Kind: store.Stop, Key: key, Token: token, Reason: reason})
	switch {
	case err != nil:
		return err
	case !held:
		return &types.NotHeldError{Key: key, Token: token}
	}
	m.obs.StopSent(ctx, key, m.cfg.Instance)
	return nil
}

// tell makes the store know a lock of this sidecar under its own token, so that the store finds it by this token.
func (m *Manager) tell(ctx context.Context, key string, token int64) error {
	if h := m.holdings.Find(key, token); h != nil {
		return m.acquirer.Tell(ctx, h)
	}
	return nil
}

// Break ends the grants of a lock that was names, as returned by [Manager.Get], and no later grant. For a shared
// lock, a token other than 0 names one of them. It returns when the grants are over, at the latest when their
// leases end; of more than [store.HoldersShown] it waits for the first ones. Errors: [NotHeldError],
// [ErrCallerLeft] (the lock is broken nevertheless), [ErrDraining] after Stop, and those of the store.
func (m *Manager) Break(ctx context.Context, was store.Lock, token int64) error {
	if !was.Held || !was.Shared && token != 0 && token != was.Token {
		return &types.NotHeldError{Key: was.Key, Token: token}
	}
	if !was.Shared {
		token = was.Token
	}
	limited, cancel := types.Within(ctx, "signal", m.cfg.StoreTimeout)
	defer cancel()
	if err := m.tell(limited, was.Key, token); err != nil {
		return err
	}
	held, err := m.signals.Send(limited, store.Signal{Kind: store.Break, Key: was.Key, Token: token})
	switch {
	case err != nil:
		return err
	case !held && was.Shared && token != 0: // the token may never have been a holder's
		return &types.NotHeldError{Key: was.Key, Token: token}
	case !held:
		return nil
	}
	return m.signals.AwaitOver(ctx, was, token)
}
