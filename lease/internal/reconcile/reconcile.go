// Package reconcile compares the locks believed to be held here with the store's after a failover.
//
// After a failover to a server that knew less than was confirmed, a grant can be missing under a lease,
// and orphans can be back: grants and queue positions that nobody here knows. When a renewal names such a
// lease:
//
//  1. The lease is retired: nothing new is held under it. It is renewed as long as it has users.
//  2. The locks believed to be held under it are read. What is missing is lost. Only then is the
//     lease trusted for longer (reconcile.go).
//  3. Known locks and waits are moved to the fresh lease for that TTL (rotate.go).
//  4. When it has no user any more, the lease is closed. What is left under it are orphans.
//
// Exclusion: a move changes the lease of a grant, never the grant, in one transaction with the lock row
// locked and both leases alive. A taker of a dead holder's key names the dead lease under the same row
// lock, so it takes what is still there, or nothing. During a move the store may have the lock under
// either lease: it is trusted only while both are, and the old lease is lost if the new one is lost before
// the answer came. A move of unknown outcome is under way until the store answers for each row, because
// that move itself may keep a row locked. A move names both leases, so a buffered one does nothing to
// locks that were moved on.
//
// Token order: a move draws no token.
//
// Nothing granted is delivered twice: an attempt keeps its id. A move never grants, and an answer or news
// that comes during it finds the attempt as before.
//
// An orphan ends in bounded time: users of a retired lease only leave. Asks in flight are users with a
// time limit. Releases are users that end when the store answers. Locks and waits are moved in rounds, one
// for each renewal interval. If another session's row lock prevents a move, the lease is kept for as long
// as that row lock.
//
// If a lock or a wait ends here during its move, it is freed once more afterwards: its release or
// withdrawal may have been given up when the old lease ended. A session's lock is claimed by its instance, so a release during the
// move still frees it. After a second failover both leases are old: their locks are verified and moved
// again.
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

// VerifyMax is how many locks are read at a time, for a server that has to fetch each from a disk.
const VerifyMax = 2000

var errOtherHistory = errors.New("locks were read from another server than the one that renewed their leases")

// Config is what a reconciler needs.
type Config struct {
	types.Config
	Store    store.Mover // nil if the store forgets nothing
	Leases   *heartbeat.Leases
	Holdings *holdings.Set
	Attempts *attempt.Acquirer
}

// Reconciler compares the locks believed here with the store's.
type Reconciler struct {
	mover store.Mover
	clk   clock.Clock
	log   *slog.Logger
	// timeout limits one operation of the store. pause is about the time between two rounds of moves.
	timeout, pause time.Duration

	leases   *heartbeat.Leases
	holdings *holdings.Set
	acquirer *attempt.Acquirer
	ctx      context.Context
}

// New makes a reconciler, which moves nothing after ctx has ended.
func New(ctx context.Context, c Config) *Reconciler {
	return &Reconciler{
		mover: c.Store, clk: c.Clock, log: c.Logger, timeout: c.StoreTimeout, pause: c.RenewInterval,
		leases: c.Leases, holdings: c.Holdings, acquirer: c.Attempts, ctx: ctx,
	}
}

// unread are the locks of leases that were not read in a history.
type unread map[*heartbeat.Lease][]*holdings.Lock

// Verify asks the store for the locks believed to be held under leases. Missing ones are lost. trusted is
// called for each lease once all is read, small leases first, so that a large one does not delay their
// renewal. The next renewal reads only later locks, which an answer of the old server brought.
func (rc *Reconciler) Verify(ctx context.Context, leases []*heartbeat.Lease, history store.History, trusted func(*heartbeat.Lease)) error {
	left := make(unread, len(leases))
	for _, l := range leases { // before the question: the store may not have seen later ones
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

// readSome reads the next of these locks. Missing ones are lost.
func (rc *Reconciler) readSome(ctx context.Context, leases []*heartbeat.Lease, left unread, history store.History) error {
	var keys []string
	var longest time.Duration
	asked, count := make(map[string]bool), 0
	read := make(unread, len(leases))
	for _, l := range leases {
		read[l] = left[l][:min(len(left[l]), VerifyMax-count)]
		count += len(read[l])
		for _, h := range read[l] {
			if !asked[h.Key] { // of several shares, once
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
	there := make(map[string][]store.HeldGrant, len(held.Grants))
	for _, g := range held.Grants {
		there[g.Key] = append(there[g.Key], g)
	}
	lost := 0
	for l, some := range read {
		for _, h := range some {
			known := slices.ContainsFunc(there[h.Key], func(g store.HeldGrant) bool {
				return h.IsKnownAs(g.Token) && (l.Covers(g.Lease) || h.Lease().Covers(g.Lease)) // it may have been moved
			})
			if !known && h.Lose(types.LostStore) {
				lost++
			}
			h.SetVerified(true)
		}
		left[l] = left[l][len(some):]
	}
	if lost > 0 {
		rc.log.Error("locks lost: the database server was promoted and does not know them", "locks", lost)
	}
	return nil
}
