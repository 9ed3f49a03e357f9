package memory

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
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
	self  key.Instance
	ns    *namespace
	news  func(store.News)
	state atomic.Int32
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Immediate = (*Store)(nil)
)

// Start makes the store usable. It fails after Stop. The goroutine that causes news calls news before its
// own operation returns. news may call the store.
func (s *Store) Start(_ context.Context, news func(store.News)) error {
	if s.state.Load() == fresh {
		s.news = news
	}
	switch {
	case s.state.CompareAndSwap(fresh, started):
		return s.begin()
	case s.state.Load() == stopped:
		return &store.Error{Op: "Start", Err: errStopped}
	}
	return nil
}

func (s *Store) begin() error {
	if err := s.ns.space.views.Begin(s.id.Instance, s); err != nil {
		s.state.Store(stopped)
		return &store.Error{Op: "Start", Err: err}
	}
	if s.state.Load() == stopped { // by a Stop at the same time
		s.ns.space.views.End(s.id.Instance, s)
	}
	return nil
}

// Stop makes operations fail from now on. The instance's locks stay held until its leases end.
func (s *Store) Stop() {
	s.state.Store(stopped)
	s.ns.space.views.End(s.id.Instance, s)
}

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

// Traits says that calls are immediate, and all news arrives.
func (s *Store) Traits() store.Traits { return store.Traits{Inline: true} }

func (s *Store) usable(ctx context.Context, op string) error {
	if err := s.Ready(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	return nil
}

// deliver passes news on.
func (s *Store) deliver(n *store.News) {
	if s.news != nil && s.state.Load() == started {
		s.news(*n)
	}
}

// operation is one call of the store. Its Op collects the work that follows when no shard is locked.
type operation struct {
	key.Op
	ns *namespace
}

func (s *Store) operation() operation {
	return operation{Op: key.Op{Engine: s.ns, By: &s.self}, ns: s.ns}
}

// lock locks the shard of a key, and returns its row. The operation happens now.
func (o *operation) lock(k string) (*shard, *row) {
	sh := o.ns.shard(k)
	sh.mu.Lock()
	o.Now = o.ns.space.now()
	r := sh.rows[k]
	if r == nil {
		r = &row{Row: key.Row{Key: k}}
	}
	return sh, r
}

// finish completes reaps and sends the news. The caller holds no mutex.
func (o *operation) finish() {
	o.visitReaped()
	for i := range o.News {
		o.News[i].To.Deliver(&o.News[i].News)
	}
}
