// Package reconcile compares the locks that this sidecar believes in with the store's after a failover.
//
// After a failover to a server with older data, a grant can be missing under a lease. Orphans can also come
// back: grants and queue positions that this sidecar does not know. When a renewal names such a lease:
//
//  1. The lease is retired: it gets no new locks. It is renewed as long as it has users.
//  2. The sidecar reads the locks that it believes to be held under the lease. Missing ones are lost. Only
//     then is the lease trusted for longer (reconcile.go).
//  3. Known locks and waits are moved to the fresh lease for that TTL (rotate.go).
//  4. When the lease has no users, it is closed. This ends the orphans under it.
//
// Exclusion: a move changes the lease of a grant, never the grant, in one transaction with the lock row locked and
// both leases alive. A statement that takes a dead holder's key checks the dead lease under the same row lock, so
// it never takes a moved lock. During a move the store may have the lock under either lease. So the lock is trusted
// only while both are, and the old lease is lost if the new one is lost before the answer. A move of unknown
// outcome continues until the store answers for each row, because that move itself may keep a row locked. A move
// names both leases, so a delayed one does not change locks that were moved again.
//
// Token order: a move does not use a token.
//
// A grant is delivered only once, because an attempt keeps its id. A move never grants, so an answer or
// news during the move finds the attempt unchanged.
//
// An orphan ends in bounded time, because the users of a retired lease only decrease. Asks in flight are users with
// a time limit. Releases are users until the store answers. Locks and waits are moved in rounds, one in each
// renewal interval. If another session's row lock prevents a move, the lease is kept as long as that row lock.
//
// If a lock or a wait ends here during its move, it is freed once more afterwards, because its release or
// withdrawal may have stopped when the old lease ended. If the lock was lost early, its app may believe in it
// until the deadline, and it is freed then. A session's lock is claimed by its instance, so a
// release during the move still frees it. After a second failover both leases are old: their locks are
// verified and moved again.
package reconcile

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

// verifyMax limits the locks of one read, because the server may have to read each from a disk.
const verifyMax = 2000

var errOtherHistory = errors.New("locks were read from another server than the one that renewed their leases")

// Config is the configuration of a Reconciler.
type Config struct {
	types.Config
	Store    store.Mover
	Leases   *heartbeat.Leases
	Holdings *holdings.Set
	Attempts *attempt.Acquirer
}

// Reconciler compares the locks of this sidecar with the store's.
type Reconciler struct {
	mover store.Mover
	clk   clock.Clock
	log   *slog.Logger
	// timeout limits one operation of the store. pause is the approximate time between two rounds of moves.
	timeout, pause time.Duration

	leases   *heartbeat.Leases
	holdings *holdings.Set
	acquirer *attempt.Acquirer
	ctx      context.Context
}

// New makes a reconciler, which stops moving when ctx ends.
func New(ctx context.Context, c Config) *Reconciler {
	return &Reconciler{
		mover: c.Store, clk: c.Clock, log: c.Logger, timeout: c.StoreTimeout, pause: c.RenewInterval,
		leases: c.Leases, holdings: c.Holdings, acquirer: c.Attempts, ctx: ctx,
	}
}

// unread are the locks, by lease, that were not yet read in the present history.
type unread map[*heartbeat.Lease][]*holdings.Lock

// Verify asks the store for the locks believed to be held under leases. Missing ones are lost. trusted is
// called for each lease when all its locks are read, small leases first, so that a large one does not delay
// their renewal. The next renewal reads only locks that were added later by answers of the old server.
func (rc *Reconciler) Verify(ctx context.Context, leases []*heartbeat.Lease, history store.History, trusted func(*heartbeat.Lease)) error {
	left := make(unread, len(leases))
	for _, l := range leases { // before the question, because the store may not have later locks
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

// collect returns the locks under a lease that were not yet read in this history.
func (rc *Reconciler) collect(l *heartbeat.Lease, history store.History) (left []*holdings.Lock) {
	first := l.Verified != history
	l.Verified = history
	for _, h := range rc.holdings.On(l) {
		if first {
			h.SetVerified(false)
		}
		if !h.IsVerified() {
			left = append(left, h)
		}
	}
	return left
}

// readSome reads the next part of these locks. Missing ones are lost.
func (rc *Reconciler) readSome(ctx context.Context, leases []*heartbeat.Lease, left unread, history store.History) error {
	var keys []string
	var longest time.Duration
	asked, count := make(map[string]bool), 0
	read := make(unread, len(leases))
	for _, l := range leases {
		read[l] = left[l][:min(len(left[l]), verifyMax-count)]
		count += len(read[l])
		for _, h := range read[l] {
			if !asked[h.Key] { // several shares of a key are read once
				asked[h.Key] = true
				keys = append(keys, h.Key)
			}
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
	rc.loseMissing(read, held.Grants)
	for l, some := range read {
		left[l] = left[l][len(some):]
	}
	return nil
}

// loseMissing loses those of the read locks that the store does not have. All of them count as verified then.
func (rc *Reconciler) loseMissing(read unread, grants []store.HeldGrant) {
	there := make(map[string][]store.HeldGrant, len(grants))
	for _, g := range grants {
		there[g.Key] = append(there[g.Key], g)
	}
	lost := 0
	for l, some := range read {
		for _, h := range some {
			known := slices.ContainsFunc(there[h.Key], func(g store.HeldGrant) bool {
				return h.IsKnownAs(g.Token) && (l.Covers(g.Lease) || h.Lease().Covers(g.Lease)) // the lock may have been moved
			})
			if !known && h.Lose(types.LostStore) {
				lost++
			}
			h.SetVerified(true)
		}
	}
	if lost > 0 {
		rc.log.Error("locks lost: the promoted database server does not have them", "locks", lost)
	}
}
