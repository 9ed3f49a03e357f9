package memory

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/store"
)

var (
	errNotStarted = errors.New("not started")
	errStopped    = errors.New("stopped")
)

const (
	fresh int32 = iota
	started
	stopped
)

// Store is one instance's view of a [Space]. It implements [store.Store]. The Data of a returned Holder is
// shared and must not be changed.
type Store struct {
	id    store.Identity
	ns    *namespace
	news  func(store.News)
	state atomic.Int32
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Lister    = (*Store)(nil)
	_ store.Waiters   = (*Store)(nil)
	_ store.Signaler  = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Mover     = (*Store)(nil)
	_ store.Reaper    = (*Store)(nil)
	_ store.Census    = (*Store)(nil)
	_ store.Immediate = (*Store)(nil)
)

// Start makes the store usable. It fails after Stop. The goroutine that causes news calls news before its
// own operation returns. news may call the store.
func (s *Store) Start(_ context.Context, news func(store.News)) error {
	if s.state.Load() == fresh {
		s.news = news
	}
	if !s.state.CompareAndSwap(fresh, started) && s.state.Load() == stopped {
		return &store.Error{Op: "Start", Err: errStopped}
	}
	return nil
}

// Stop makes operations fail from now on. The instance's locks stay held until its leases end.
func (s *Store) Stop() { s.state.Store(stopped) }

// Ready is nil between Start and Stop.
func (s *Store) Ready() error {
	switch s.state.Load() {
	case fresh:
		return errNotStarted
	case stopped:
		return errStopped
	default:
		return nil
	}
}

// Traits says that calls are immediate, all news arrives, and locks may be shared.
func (s *Store) Traits() store.Traits { return store.Traits{Inline: true, Shared: true} }

func (s *Store) usable(ctx context.Context, op string) error {
	if err := s.Ready(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	return nil
}

// operation is one call of the store. It collects the work that follows when no shard is locked.
type operation struct {
	ns *namespace
	// reaped are leases that were declared dead and whose keys are not visited yet.
	reaped []*lease
	news   []delivery
}

type delivery struct {
	to   *Store
	news store.News
}

// tell sends a waiter's answer to its instance. Without an Outcome, it asks the instance to check the waiter.
func (o *operation) tell(r *row, w *waiter, a store.Answer) {
	o.news = append(o.news, delivery{w.by, store.News{
		Attempt: store.Attempt{Key: r.key, ID: w.grant}, Lease: w.lease.id, Answer: a,
	}})
}

// finish completes reaps and sends the news. The caller holds no mutex.
func (o *operation) finish() {
	o.visitReaped()
	for _, d := range o.news {
		if d.to.news != nil && d.to.state.Load() == started {
			d.to.news(d.news)
		}
	}
}
