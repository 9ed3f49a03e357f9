package lease

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Get returns the state of a key. If a session of this sidecar holds it exclusively, the store is not
// asked, unless noCache. s is the session that asks; it may be nil.
func (m *Manager) Get(ctx context.Context, s *holdings.Session, key string, noCache bool) (types.View, error) {
	if h := m.holdings.Get(key); h != nil && !noCache && !h.IsDowngraded() {
		if lock := m.acquirer.StateOf(h); lock.Holder.ExpiresIn > 0 {
			m.obs.Cached(observe.CachedRead)
			return types.View{Lock: lock, Mine: h.Of(s) && s.Find(key, h.Token) == h, Cached: true}, nil
		}
		m.loseOverdue(h)
	}
	if !noCache && m.acquirer.IsFree(key) {
		return types.View{Lock: store.Lock{Key: key}, Cached: true}, nil
	}
	ctx, cancel := types.Within(ctx, "get", m.cfg.StoreTimeout)
	defer cancel()
	lock, err := lanes.Submit(ctx, m.lanes.Reads, key)
	if err != nil {
		return types.View{}, err
	}
	m.hideKept(&lock)
	if !lock.Held {
		m.heldCache.Drop(key)
	}
	return m.viewOf(s, lock), nil
}

// hideKept shows a key as free that the store shows as held by this sidecar, if no session here has it.
// The Kept of a lock that a session here has says nothing.
func (m *Manager) hideKept(lock *store.Lock) {
	switch {
	case !lock.Kept || lock.Holder.Instance != m.cfg.Instance:
	case m.holdings.Get(lock.Key) == nil:
		*lock = store.Lock{Key: lock.Key, QueueLength: lock.QueueLength}
	default:
		lock.Kept = false
	}
}

// viewOf is a lock from the store's answer, seen from a session. Mine is false after its deadline here,
// even if the store still reports it as held.
func (m *Manager) viewOf(s *holdings.Session, lock store.Lock) types.View {
	if s == nil || !lock.Held {
		return types.View{Lock: lock}
	}
	if lock.Shared {
		h := s.First(lock.Key)
		if h != nil {
			lock.Token = h.Token
		}
		return types.View{Lock: lock, Mine: h != nil}
	}
	h := s.Find(lock.Key, lock.Token)
	return types.View{Lock: lock, Mine: h != nil && h.Valid(clock.Read(m.cfg.Clock))}
}

// List returns held locks, ordered by the bytes of their keys. s is the session that asks; if it is nil,
// [ScopeSession] returns nothing.
func (m *Manager) List(call context.Context, s *holdings.Session, req types.ListRequest) (_ types.Page, err error) {
	ctx, cancel := context.WithTimeout(call, m.cfg.StoreTimeout)
	defer cancel()
	defer func() { err = lanes.Refusal(call, err) }()
	if req.Scope == types.ScopeSession {
		views := s.List(req)
		for i := range views {
			views[i].QueueLength = m.acquirer.Queue.Length(views[i].Key)
		}
		page := pageOf(views, req.Limit)
		page.Locks, err = m.showShares(ctx, s, page.Locks)
		return page, err
	}
	if err := m.mayShow(req.Namespace); err != nil {
		return types.Page{}, err
	}
	if req.Namespace != "" {
		s = nil // its locks are of the own namespace
	}
	q := store.Query{Namespace: req.Namespace, Prefix: req.Prefix, After: req.After, Limit: req.Limit + 1}
	if req.Scope == types.ScopePod {
		q.Instance = m.cfg.Instance
	}
	locks, err := m.st.List(ctx, q)
	if err != nil {
		return types.Page{}, err
	}
	views := make([]types.View, len(locks))
	for i, lock := range locks {
		if req.Namespace == "" {
			m.hideKept(&lock)
		}
		views[i] = m.viewOf(s, lock)
	}
	page := pageOf(views, req.Limit)
	page.Locks = slices.DeleteFunc(page.Locks, func(v types.View) bool { return !v.Held })
	return page, nil
}

// showShares asks the store for the other holders of a session's shares. It omits a lock that was lost meanwhile.
func (m *Manager) showShares(ctx context.Context, s *holdings.Session, views []types.View) ([]types.View, error) {
	var keys []string
	for _, v := range views {
		if v.Shared {
			keys = append(keys, v.Key)
		}
	}
	if len(keys) == 0 {
		return views, nil
	}
	locks, err := m.st.Get(ctx, keys)
	if err != nil {
		return nil, err
	}
	shown := views[:0]
	for _, v := range views {
		if v.Shared {
			v, locks = m.viewOf(s, locks[0]), locks[1:]
		}
		if v.Mine {
			shown = append(shown, v)
		}
	}
	return shown, nil
}

// Waiters lists waiting calls, ordered by the bytes of their keys and by queue position.
func (m *Manager) Waiters(call context.Context, req types.WaitersRequest) (types.WaitersPage, error) {
	ctx, cancel := context.WithTimeout(call, m.cfg.StoreTimeout)
	defer cancel()
	if err := m.mayShow(req.Namespace); err != nil {
		return types.WaitersPage{}, err
	}
	query := req
	query.Limit++ // one more tells whether another page follows
	found, err := m.st.Waiting(ctx, query)
	if err != nil || len(found) <= req.Limit {
		return types.WaitersPage{Waiting: found}, lanes.Refusal(call, err)
	}
	found = found[:req.Limit]
	return types.WaitersPage{Waiting: found, Next: found[req.Limit-1].QueuePlace}, nil
}

// mayShow fails unless the store shows a namespace to this sidecar. Empty is its own.
func (m *Manager) mayShow(namespace string) error {
	if namespace == "" {
		return nil
	}
	e, err := store.As[store.Elsewhere](m.st, "reading other namespaces")
	if err != nil {
		return err
	}
	return e.MayShowNamespaces()
}

func pageOf(views []types.View, limit int) types.Page {
	if len(views) <= limit {
		return types.Page{Locks: views}
	}
	return types.Page{Locks: views[:limit], Next: views[limit-1].Key}
}

// Stats counts what the whole database holds, in all namespaces. It may read every lock, so it is for
// people. It ends with the store's timeout or with this sidecar.
func (m *Manager) Stats(ctx context.Context) (store.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.StoreTimeout)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	counted, err := m.st.Stats(ctx)
	if err != nil && m.ctx.Err() != nil {
		err = types.ErrDraining
	}
	return counted, err
}

// Fleet returns the last count of the whole database, if this sidecar is elected to count. The election and
// the counting continue in the background only while Fleet is called.
func (m *Manager) Fleet() (store.Stats, bool) { return m.fleet.Current() }
