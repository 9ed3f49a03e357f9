package lease

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/lease/internal/watch"
	"github.com/locksidecar/locksidecar/store"
)

// Event is what a watcher of a key receives.
type Event = watch.Event

func (m *Manager) newWatches() *watch.Watches {
	return watch.New(watch.Config{
		Store: m.st, Get: m.getWatched, Clock: m.cfg.Clock, Log: m.cfg.Logger, Needs: m.needs, Pin: m.pinForWatches,
		Every:   func() time.Duration { return clock.Jittered(m.acquirer.Queue.CheckInterval()) },
		Retry:   func() time.Duration { return clock.Jittered(m.cfg.PollInterval) },
		Timeout: m.cfg.StoreTimeout, BatchMax: m.cfg.BatchMax, MaxStreams: m.cfg.MaxWaiters,
	})
}

// getWatched reads keys that are watched from now on. A watcher wants to hear of each holder, so the store must know them.
func (m *Manager) getWatched(ctx context.Context, keys []string) ([]store.Lock, error) {
	for _, key := range keys {
		m.acquirer.Expose(key)
	}
	return m.st.Get(ctx, keys)
}

type watchLease struct {
	m *Manager
	l *heartbeat.Lease
}

func (w watchLease) ID() store.LeaseID { return w.l.ID() }
func (w watchLease) Unpin()            { w.l.Unpin() }

func (w watchLease) Alive() bool {
	return w.l.Alive(clock.Read(w.m.cfg.Clock)) && !w.m.leases.Retired(w.l)
}

// pinForWatches pins the lease of watches. ctx ends with the sidecar.
func (m *Manager) pinForWatches(ctx context.Context) (watch.Lease, error) {
	for {
		w := watchLease{m, m.leases.Pin(m.ctx, m.cfg.TTL)}
		var err error
		select {
		case <-w.l.Opened():
			err = w.l.Err()
		case <-ctx.Done():
			err = types.ErrDraining
		}
		if err == nil && w.l.Alive(clock.Read(m.cfg.Clock)) {
			return w, nil
		}
		w.Unpin()
		if err != nil {
			return nil, err
		}
		m.leases.LoseOverdue(w.l) // it has expired, and the renewer has not noticed yet
	}
}

// Watch calls hear with each event of a key, until stop is called. It returns the key's state when the
// watch began; the events came later. hear must not block and must not call back. It is called by one
// goroutine at a time, perhaps before Watch returns, and not after stop has returned. Errors: [LimitError],
// [ErrCallerLeft], [ErrDraining], and those of the store.
func (m *Manager) Watch(ctx context.Context, s *holdings.Session, key string, hear func(Event)) (v types.View, stop func(), err error) {
	if m.isDraining() {
		return types.View{}, nil, types.ErrDraining
	}
	limited, cancel := types.Within(ctx, "watch", m.cfg.StoreTimeout)
	defer cancel()
	defer m.acquirer.CountCalls(key)()
	if err := m.giveUp(limited, key); err != nil {
		return types.View{}, nil, err
	}
	stream, err := m.watches.Open(key, hear)
	if err != nil {
		return types.View{}, nil, err
	}
	var lock store.Lock
	select {
	case <-stream.Begun():
		lock, err = stream.State()
	case <-limited.Done():
		err = types.Left(limited)
	case <-m.draining:
		err = types.ErrDraining
	}
	if err != nil {
		stream.Close()
		return types.View{}, nil, err
	}
	return m.viewOf(s, lock), stream.Close, nil
}

// giveUp gives a key up if it is kept here, and waits until the store has it back.
func (m *Manager) giveUp(limited context.Context, key string) error {
	try := m.acquirer.TryToGiveUp(key)
	if try == nil {
		return nil
	}
	select {
	case <-try.Ended():
		return try.Err()
	case <-limited.Done():
		return types.Left(limited)
	}
}
