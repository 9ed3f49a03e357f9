package lease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// After a failover to a server that knew less than was told, a lease may have outlived
// what is held under it: then a grant is lost that an app believes in, and somebody else gets
// the key; or one is back that was released, and nobody ever would release it again. Who
// renews a lease hears of that (store.Renewal). Before it trusts the lease any longer, it
// asks for what it believes in, by the keys: so exclusion is broken for no longer than the
// lease was trusted before. What came back only keeps others waiting. It is looked for
// later (orphans.go), and until then the store goes on to name the lease.

// believedMax is how many locks are asked for at a time: few enough for a server that has to
// fetch each of them from a disk.
const believedMax = 2000

// errOtherHistory: two answers came from two servers.
var errOtherHistory = errors.New("what is held under the leases was read from another server than the one that renewed them")

// reconciliation is what is to be counted on a lease in a history.
type reconciliation struct {
	history store.History
	// until then answers of the server that was may come, with grants that this one does not
	// know; looked is when those that are believed were last collected.
	until, looked time.Time
	// unread are those of them that were not asked for yet.
	unread []*heldLock
	// searched: there is nothing on it that is not known here.
	searched atomic.Bool
}

// reconcile asks the store for the locks that are believed to be held under leases. What the store
// has not is lost. trusted is called for each lease of which all is read, those with few
// locks first: a lease with many must not keep the others from being renewed. What was read
// is not read again by the next renewal.
func (m *Manager) reconcile(ctx context.Context, leases []*lease, history store.History, trusted func(*lease)) error {
	var known []*lease
	for _, l := range leases { // before the store is asked: what comes later it may not have seen
		m.collect(l, history)
		if l.reconciling.searched.Load() {
			known = append(known, l)
		}
	}
	leases = slices.SortedFunc(slices.Values(leases), func(a, b *lease) int {
		return cmp.Compare(len(a.reconciling.unread), len(b.reconciling.unread))
	})
	for {
		for len(leases) > 0 && (len(leases[0].reconciling.unread) == 0 || !leases[0].alive(clock.Read(m.clk))) {
			leases[0].reconciling.unread = nil // it may have been much
			m.orphans.seek(leases[0], leases[0].reconciling)
			trusted(leases[0])
			leases = leases[1:]
		}
		if len(leases) == 0 {
			m.reconciled(ctx, known, history)
			return nil
		}
		if err := m.readSome(ctx, leases, history); err != nil {
			return err
		}
	}
}

// collect notes which locks are believed to be held under a lease and were not read in a history.
func (m *Manager) collect(l *lease, history store.History) {
	now, first := m.clk.Now(), l.reconciling == nil || l.reconciling.history != history
	if first {
		l.reconciling = &reconciliation{history: history, until: now.Add(2 * m.cfg.StoreTimeout)}
	}
	rc := l.reconciling
	if !rc.looked.Before(rc.until) {
		return
	}
	rc.looked, rc.unread = now, nil
	for _, h := range m.holdings.on(l) {
		h.read = h.read && !first
		if !h.read {
			rc.unread = append(rc.unread, h)
		}
	}
}

// reconciled tells the store that nothing on leases is unknown here. It names those again
// that it has not noted.
func (m *Manager) reconciled(ctx context.Context, leases []*lease, history store.History) {
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.StoreTimeout)
	defer cancel()
	if err := m.reconciler().Reconciled(ctx, idsOf(leases), history); err != nil {
		m.log.Debug("the store will say once more that leases are to be counted", "error", err)
	}
}

// reconciler is the engine, if it has said that leases are to be reconciled.
func (m *Manager) reconciler() store.Reconciler { return m.st.(store.Reconciler) }

// readSome asks the store for the next of the locks that are believed to be held under leases.
// Those that it has not are lost.
func (m *Manager) readSome(ctx context.Context, leases []*lease, history store.History) error {
	var some []*heldLock
	var longest time.Duration
	for _, l := range leases {
		unread := l.reconciling.unread
		some = append(some, unread[:min(len(unread), believedMax-len(some))]...)
		longest = max(longest, l.remaining(clock.Read(m.clk)))
	}
	keys := make([]string, len(some))
	for i, h := range some {
		keys[i] = h.key
	}
	ctx, cancel := context.WithTimeout(ctx, min(m.cfg.StoreTimeout, longest))
	defer cancel()
	count, err := m.reconciler().HeldUnder(ctx, idsOf(leases), keys)
	if err == nil && count.History != history {
		err = errOtherHistory
	}
	if err != nil {
		return err
	}
	there := make(map[grantRef]store.LeaseID, len(count.Grants))
	for _, r := range count.Grants {
		if !r.Waiting {
			there[grantRef{r.Key, r.Token}] = r.Lease
		}
	}
	lost := 0
	for _, h := range some {
		if there[grantRef{h.key, h.token}] != h.lease.id && h.lose(types.LostStore) {
			lost++
		}
		h.read = true
		h.lease.reconciling.unread = h.lease.reconciling.unread[1:]
	}
	if lost > 0 {
		m.log.Error("locks lost: the database server was promoted and does not know them", "locks", lost)
	}
	return nil
}
