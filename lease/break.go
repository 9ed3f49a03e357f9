package lease

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// AskToStop asks the holders of a key to stop their work under the lock. If token is not 0, it asks only
// the holder with that token. reason is for people and may be nil. Errors: [NotHeldError], [ErrCallerLeft],
// [ErrDraining] after Stop, and those of the store.
func (m *Manager) AskToStop(ctx context.Context, key string, token int64, reason *string) error {
	limited, cancel := types.Within(ctx, "signal", m.cfg.StoreTimeout)
	defer cancel()
	// A key that is only kept has no holder who could stop. The store must know the present holder, so that it judges the token.
	defer m.acquirer.CountCalls(key)()
	if err := m.giveUp(limited, key); err != nil {
		return err
	}
	if err := m.tell(limited, key, token); err != nil {
		return err
	}
	if err := m.recallElsewhere(limited, key); err != nil {
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

// tell makes the store know a lock of this sidecar under its own token, so that the store finds it by this token. Of a lock that was taken from a
// kept key, the store may know an earlier holder, whom the token names.
func (m *Manager) tell(ctx context.Context, key string, token int64) error {
	h := m.holdings.Find(key, token)
	if h == nil {
		h = m.acquirer.Taken(key)
	}
	if h == nil {
		return nil
	}
	return m.acquirer.Tell(ctx, h)
}

const (
	// recallLimit is for how long a request to stop waits for a sidecar that may only keep the key: for what a recall takes, and a multiple of it. The
	// time begins when the store has the recall.
	recallLimit = 100 * time.Millisecond
	// recallPause is the pause between two looks at the key.
	recallPause = 5 * time.Millisecond
)

// recallElsewhere makes another sidecar say who holds a key that it may only keep. A watch is the recall.
func (m *Manager) recallElsewhere(ctx context.Context, key string) error {
	kept := func() (store.Lock, bool, error) {
		lock, err := lanes.Submit(ctx, m.lanes.Reads, key)
		return lock, err == nil && lock.Held && lock.Kept && lock.Holder.Instance != m.cfg.Instance, err
	}
	if m.holdings.Get(key) != nil || m.st.Traits().Inline {
		return nil // a session here has the key, or no key is ever kept
	}
	was, may, err := kept()
	if err != nil || !may {
		return nil // the request itself tells what is wrong
	}
	stream, err := m.watches.Open(key, func(Event) {})
	if err != nil {
		return nil // this sidecar has too many watches: the holder that the store knows is asked
	}
	defer stream.Close()
	// The watch may take longer than the keeper: its lease is opened, and on some stores a connection for news.
	select {
	case <-stream.Begun():
		if _, err := stream.State(); err != nil {
			return err
		}
	case <-ctx.Done():
		return types.Left(ctx)
	case <-m.ctx.Done():
		return types.ErrDraining
	}
	now := was
	for began := m.cfg.Clock.Now(); may && now.Token == was.Token && m.cfg.Clock.Now().Sub(began) < recallLimit; {
		if clock.Rest(ctx, recallPause) != nil {
			return types.Left(ctx)
		}
		if now, may, err = kept(); err != nil {
			return err
		}
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
	defer m.acquirer.CountCalls(was.Key)()
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
