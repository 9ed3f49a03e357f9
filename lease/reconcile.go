package lease

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
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

// reconciler compares what is believed here with what the store has after a failover.
type reconciler struct {
	mover store.Mover // nil if the store forgets nothing
	clk   clock.Clock
	log   *slog.Logger
	// timeout limits one operation of the store, pause is about how long after each other locks
	// and waits are moved.
	timeout, pause time.Duration

	leases   *heartbeat.Leases
	holdings *holdings.Set
	acquirer *attempt.Acquirer
	ctx      context.Context // nothing is moved after it has ended
}

// unread are locks that are believed to be held under leases, and were not read in a history.
type unread map[*heartbeat.Lease][]*holdings.Lock

// verify asks the store for the locks that are believed to be held under leases. What the store
// has not is lost. trusted is called for each lease of which all is read, those with few
// locks first: a lease with many must not keep the others from being renewed. What was read
// is not read again by the next renewal; that reads what came later, with an answer of the
// old server.
func (rc *reconciler) verify(ctx context.Context, leases []*heartbeat.Lease, history store.History, trusted func(*heartbeat.Lease)) error {
	left := make(unread, len(leases))
	for _, l := range leases { // before the store is asked: what comes later it may not have seen
		left[l] = rc.collect(l, history)
	}
	leases = slices.SortedFunc(slices.Values(leases), func(a, b *heartbeat.Lease) int { return cmp.Compare(len(left[a]), len(left[b])) })
	for {
		for len(leases) > 0 && (len(left[leases[0]]) == 0 || !leases[0].Alive(clock.Read(rc.clk))) {
			trusted(leases[0])
			leases = leases[1:]
		}
		if len(leases) == 0 {
			return nil
		}
		if err := rc.readSome(ctx, leases, left, history); err != nil {
			return err
		}
	}
}

// collect returns the locks that are believed to be held under a lease and were not read in a history.
func (rc *reconciler) collect(l *heartbeat.Lease, history store.History) (left []*holdings.Lock) {
	first := l.Verified != history
	l.Verified = history
	for _, h := range rc.holdings.On(l) {
		if first {
			h.Verified.Store(false)
		}
		if !h.Verified.Load() {
			left = append(left, h)
		}
	}
	return left
}

// readSome asks the store for the next of the locks that are believed to be held under leases.
// Those that it has not are lost.
func (rc *reconciler) readSome(ctx context.Context, leases []*heartbeat.Lease, left unread, history store.History) error {
	var keys []string
	var longest time.Duration
	read := make(unread, len(leases))
	for _, l := range leases {
		read[l] = left[l][:min(len(left[l]), verifyMax-len(keys))]
		for _, h := range read[l] {
			keys = append(keys, h.Key)
		}
		longest = max(longest, l.Remaining(clock.Read(rc.clk)))
	}
	ctx, cancel := context.WithTimeout(ctx, min(rc.timeout, longest))
	defer cancel()
	held, err := rc.mover.HeldUnder(ctx, keys)
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
			under := there[grant{h.Key, h.Token}]
			if !l.Covers(under) && !h.Lease().Covers(under) && h.Lose(types.LostStore) { // it may have been moved meanwhile
				lost++
			}
			h.Verified.Store(true)
		}
		left[l] = left[l][len(some):]
	}
	if lost > 0 {
		rc.log.Error("locks lost: the database server was promoted and does not know them", "locks", lost)
	}
	return nil
}
