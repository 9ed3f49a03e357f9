package lease

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// The pauses between two looks at a key that is being broken grow from one to the
// other.
const (
	breakPauseMin = 10 * time.Millisecond
	breakPauseMax = 250 * time.Millisecond
)

// AskToStop asks whoever holds a key to stop what it does under the lock. reason is
// for people; nil: none. Errors: [NotHeldError], [ErrCallerLeft], [ErrDraining] after
// Stop, and those of the store.
func (m *Manager) AskToStop(ctx context.Context, key string, reason *string) error {
	held, err := m.signal(ctx, store.Signal{Kind: store.Stop, Key: key, Reason: reason})
	switch {
	case err != nil:
		return err
	case !held:
		return &types.NotHeldError{Key: key}
	}
	m.obs.StopSent(ctx, key, m.cfg.Instance)
	return nil
}

// Break takes a lock from its holder. was is the lock as [Manager.Get] told it: the grant
// that it names is broken, and no other. Break returns when that grant is over, at the
// latest when its lease ends. Errors: [NotHeldError], [ErrCallerLeft] (it is broken all the
// same), [ErrDraining] after Stop, and those of the store.
func (m *Manager) Break(ctx context.Context, was store.Lock) error {
	if !was.Held {
		return &types.NotHeldError{Key: was.Key}
	}
	held, err := m.signal(ctx, store.Signal{Kind: store.Break, Key: was.Key, Token: was.Token})
	if err != nil || !held {
		return err
	}
	return m.awaitBroken(ctx, was)
}

// signal sends a signal. It reports false when the key is not held, or not under
// the token that the signal names.
func (m *Manager) signal(ctx context.Context, sig store.Signal) (held bool, err error) {
	standing, err := submit(ctx, m.requires, sig)
	if err == nil && standing == store.ClaimRowLocked {
		err = types.RowLocked("signal")
	}
	if err != nil {
		return false, err
	}
	m.heldCache.Drop(sig.Key)
	return standing == store.Holds, nil
}

// signalHolders sends signals.
func (m *Manager) signalHolders(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	signaler, err := store.As[store.Signaler](m.st, store.FeatureStop)
	if err != nil {
		return nil, err
	}
	return signaler.Signal(ctx, signals)
}

// awaitBroken waits until the key of a lock is not held any more as it was. The
// store has done it where nobody needs to be asked; else the holder's sidecar hears
// of it in a moment, or with its next renewal.
func (m *Manager) awaitBroken(ctx context.Context, was store.Lock) error {
	asked := was.Holder.Renewed
	for pause := breakPauseMin; ; pause = min(2*pause, breakPauseMax) {
		if asked || pause > breakPauseMin {
			if err := rest(ctx, pause); err != nil {
				return err
			}
		}
		lock, err := submit(ctx, m.reads, was.Key)
		switch {
		case err != nil:
			return err
		case !lock.Held || lock.Token != was.Token:
			m.heldCache.Drop(was.Key)
			return nil
		}
	}
}

// rest waits for so long, or until the call has left.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
}
