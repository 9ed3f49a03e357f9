package lease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// After a failover to a server that knew less than was confirmed, a lease may have outlived
// what is held under it: an app believes in a lock that is lost, and somebody else gets the
// key. A renewal names such leases (store.Renewal). Before they are trusted any longer, the
// locks that are believed to be held under them are read by their keys: so exclusion is broken
// for no longer than the lease was trusted before. What came back ends with the lease
// (rotate.go).

// verifyMax is how many locks are read at a time: few enough for a server that has to fetch
// each of them from a disk.
const verifyMax = 2000

// errOtherHistory: two answers came from two servers.
var errOtherHistory = errors.New("locks were read from another server than the one that renewed their leases")

// verify asks the store for the locks that are believed to be held under leases. What the store
// has not is lost. trusted is called for each lease of which all is read, those with few
// locks first: a lease with many must not keep the others from being renewed. What was read
// is not read again by the next renewal; that reads what came later, with an answer of the
// old server.
func (m *Manager) verify(ctx context.Context, leases []*lease, history store.History, trusted func(*lease)) error {
	for _, l := range leases { // before the store is asked: what comes later it may not have seen
		m.collect(l, history)
	}
	leases = slices.SortedFunc(slices.Values(leases), func(a, b *lease) int { return cmp.Compare(len(a.unread), len(b.unread)) })
	for {
		for len(leases) > 0 && (len(leases[0].unread) == 0 || !leases[0].alive(clock.Read(m.clk))) {
			leases[0].unread = nil // it may have been much
			trusted(leases[0])
			leases = leases[1:]
		}
		if len(leases) == 0 {
			return nil
		}
		if err := m.readSome(ctx, leases, history); err != nil {
			return err
		}
	}
}

// collect notes which locks are believed to be held under a lease and were not read in a history.
func (m *Manager) collect(l *lease, history store.History) {
	first := l.verified != history
	l.verified, l.unread = history, nil
	for _, h := range m.holdings.on(l) {
		if first {
			h.read.Store(false)
		}
		if !h.read.Load() {
			l.unread = append(l.unread, h)
		}
	}
}

// readSome asks the store for the next of the locks that are believed to be held under leases.
// Those that it has not are lost.
func (m *Manager) readSome(ctx context.Context, leases []*lease, history store.History) error {
	var keys []string
	var longest time.Duration
	read := make(map[*lease][]*heldLock, len(leases))
	for _, l := range leases {
		read[l] = l.unread[:min(len(l.unread), verifyMax-len(keys))]
		for _, h := range read[l] {
			keys = append(keys, h.key)
		}
		longest = max(longest, l.remaining(clock.Read(m.clk)))
	}
	ctx, cancel := context.WithTimeout(ctx, min(m.cfg.StoreTimeout, longest))
	defer cancel()
	held, err := m.mover.HeldUnder(ctx, keys)
	if err == nil && held.History != history {
		err = errOtherHistory
	}
	if err != nil {
		return err
	}
	type grant struct {
		key   string
		token int64
	}
	there := make(map[grant]store.LeaseID, len(held.Grants))
	for _, g := range held.Grants {
		there[grant{g.Key, g.Token}] = g.Lease
	}
	lost := 0
	for l, some := range read {
		for _, h := range some {
			under := there[grant{h.key, h.token}]
			if !l.has(under) && !h.lease().has(under) && h.lose(types.LostStore) { // it may have been moved meanwhile
				lost++
			}
			h.read.Store(true)
		}
		l.unread = l.unread[len(some):]
	}
	if lost > 0 {
		m.log.Error("locks lost: the database server was promoted and does not know them", "locks", lost)
	}
	return nil
}

// has reports whether what is known here under the lease may be held under that one: it may
// have been moved, and the answer not be here. A lease that it was moved to is set before the
// store is asked, and taken away after the answer.
func (l *lease) has(id store.LeaseID) bool {
	if l.id == id {
		return true
	}
	next := l.next.Load()
	return next != nil && next.has(id)
}
