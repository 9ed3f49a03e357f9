package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Run renews the due leases in one statement, and loses those past their deadline, until ctx ends.
func (ls *Leases) Run(ctx context.Context) {
	ls.others = ls.cfg.Beat.Join(func(interval time.Duration) {
		for known := ls.joins.Load(); known < int64(interval) && !ls.joins.CompareAndSwap(known, int64(interval)); {
			known = ls.joins.Load()
		}
		ls.changed()
	})
	defer ls.others.Leave()
	clock.Loop(ctx, ls.wake, ls.step)
}

// step tells what happens to leases as time passes. It returns the pause until the next step.
func (ls *Leases) step() time.Duration {
	p := ls.plan(ls.cfg.Clock, ls.cfg.RenewInterval, time.Duration(ls.joins.Swap(0)))
	// A lease past its deadline is lost, even if the store would still renew it.
	for _, l := range p.past {
		ls.LoseOverdue(l)
	}
	// A lease without users is closed.
	for _, l := range p.idle {
		ls.cfg.Log.Debug("lease closed, because it holds no locks or waits", "lease", l.id, "ttl", l.ttl.String())
		ls.revoke(l)
	}
	// The due ones are renewed in the background, because the store may be slow, and deadlines are not.
	if p.beat > 0 {
		ls.others.Due(p.beat)
	}
	if len(p.due) > 0 {
		ls.cfg.Background.Spawn(func() { ls.renew(p.due) })
	}
	return p.next
}

// plan is what one step has to do, and the pause until the next.
type plan struct {
	past []*Lease // past their deadline, so lost
	idle []*Lease // without users; removed from the set, to be closed
	due  []*Lease // to be renewed now
	// beat is the longest interval of those that are due by themselves, and not only because a renewal has failed.
	beat time.Duration
	next time.Duration
}

// plan reads all leases. It removes the idle ones, and marks the due ones: they are being renewed, and count as unconfirmed until the store has confirmed that
// (see LossReason). Leases that are due soon are renewed together with a due one, so that they stay together. joins is the interval of a lease of another
// manager that is due; 0: none.
func (ls *Leases) plan(clk clock.Clock, configured, joins time.Duration) plan {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := clk.Now()
	p := plan{next: time.Hour}
	var resting []*Lease
	anyDue := false
	for _, l := range ls.allLocked() {
		switch {
		case !l.isOpen(): // being opened; then wakeIfSooner follows
		case !l.Alive(clock.Read(clk)):
			p.past = append(p.past, l)
		case l.renewing:
			p.next = min(p.next, l.Deadline().Sub(now))
		default:
			resting = append(resting, l)
			if due := !l.renewAt.After(now); due {
				anyDue = true
				if !l.unconfirmed.Load() {
					p.beat = max(p.beat, interval(l.ttl, configured))
				}
			}
		}
	}
	if joins >= p.beat { // the others have heard of it
		p.beat = 0
	}
	for _, l := range resting {
		p.next = min(p.next, l.Deadline().Sub(now))
		wait, its := l.renewAt.Sub(now), interval(l.ttl, configured)
		joined := joins > 0 && wait <= min(its, joins)/2
		switch {
		case !joined && (!anyDue || wait > its/2):
			p.next = min(p.next, wait)
		case l.users.Load() == 0 && (!l.wasUsed() || ls.isRetiredLocked(l)):
			ls.removeLocked(l) // the caller holds ls.mu, so it cannot get users
			p.idle = append(p.idle, l)
		default:
			l.renewing = true
			l.unconfirmed.Store(true) // until the renewal is confirmed
			p.due = append(p.due, l)
		}
	}
	p.next = max(p.next, 0)
	ls.nextAt = now.Add(p.next)
	return p
}

// renew tells how leases are renewed.
func (ls *Leases) renew(due []*Lease) {
	// The trust counts from before the question, because the store counts from later.
	r := renewal{ls: ls, sent: ls.cfg.Clock.Now(), jitter: clock.Jitter()}
	r.suspended = ls.cfg.Clock.Suspended(r.sent)
	answer, err := ls.sendRenewal(due)
	if answer.Signals {
		ls.cfg.Users.SignalsWait()
	}
	// A confirmed lease is trusted for longer. One that the store does not know any more is lost. Without an answer, the next
	// try follows soon. After a failover, some may be doubtful: see verify.
	var doubtful []*Lease
	for _, l := range due {
		if slices.Contains(answer.Reconcile, l.id) {
			doubtful = append(doubtful, l)
			continue
		}
		r.apply(l, slices.Contains(answer.Renewed, l.id), err)
	}
	ls.changed()
	if len(doubtful) > 0 {
		err = errors.Join(err, r.verify(doubtful, answer.History))
	}
	if err != nil {
		ls.cfg.Log.Warn("leases not renewed, trying again", "leases", len(due), "error", err)
	}
	ls.cfg.Observer.Renewal(ls.cfg.Clock.Now().Sub(r.sent), len(due), r.confirmed, err)
}

// sendRenewal asks the store to renew the due leases. It waits at most StoreTimeout, and not after the last of their deadlines.
func (ls *Leases) sendRenewal(due []*Lease) (store.Renewal, error) {
	var longest time.Duration
	for _, l := range due {
		longest = max(longest, l.Remaining(clock.Read(ls.cfg.Clock)))
	}
	// Run handles leases that pass their deadline before the answer. So with a slow store, a lease with a
	// short TTL does not shorten the time for the renewal of the others.
	patience, silence := ls.cfg.StoreTimeout, types.NoAnswer(ls.cfg.StoreTimeout)
	if longest < patience {
		patience, silence = longest, fmt.Errorf("%w, and the last deadline of these leases is over", types.NoAnswer(longest.Round(time.Millisecond)))
	}
	ctx, cancel := context.WithTimeoutCause(ls.ctx, patience, silence)
	defer cancel()
	answer, err := ls.cfg.Store.Renew(ctx, idsOf(due))
	return answer, types.WithCause(ctx, err)
}

// renewal is one question to the store, for all leases that were due.
type renewal struct {
	ls        *Leases
	sent      time.Time     // before the question; the new terms count from here
	suspended time.Duration // how long the machine had been suspended in all at sent
	jitter    float64       // the factor of the interval to the next renewal, at most 1: see clock.Jitter
	confirmed int           // the number of leases that are renewed, and verified if they were doubtful
}

// apply extends the trust in a renewed lease, and sets its next renewal. If there was no error and the
// lease was not renewed, the store does not know it: it is lost.
func (r *renewal) apply(l *Lease, ok bool, err error) {
	cfg := &r.ls.cfg
	next := cfg.Clock.Now().Add(clock.RetryPause)
	if ok { // even if other leases could not be renewed
		r.confirmed++
		next = r.sent.Add(time.Duration(float64(interval(l.ttl, cfg.RenewInterval)) * r.jitter))
	}
	if err == nil && !ok {
		r.ls.LoseUnknown(l)
		return
	}
	if ok && !l.confirm(cfg.Clock, r.sent, r.suspended) {
		r.ls.LoseOverdue(l) // the confirmation came after the deadline
		return
	}
	l.unconfirmed.Store(!ok)
	r.ls.renewAgain(l, next)
}

// verify tells how doubtful leases are renewed: the store has renewed them, but it is in another history, and may have forgotten locks
// under them.
func (r *renewal) verify(doubtful []*Lease, history store.History) error {
	ls := r.ls
	// Such a lease gets no new locks, and its users are moved to a fresh lease.
	for _, l := range doubtful {
		if ls.retire(l) {
			ls.cfg.Users.LeaseRetired(l)
		}
	}
	// The locks that the store has forgotten are lost. A lease whose locks are all verified is trusted for longer, like a plain one.
	trusted := make(map[*Lease]bool, len(doubtful))
	err := ls.cfg.Users.Verify(ls.ctx, doubtful, history, func(l *Lease) {
		trusted[l] = true
		r.apply(l, true, nil)
		ls.changed()
	})
	// The others are renewed and verified again soon, until their deadlines.
	for _, l := range doubtful {
		if !trusted[l] {
			r.apply(l, false, err)
		}
	}
	ls.changed()
	return err
}

func idsOf(leases []*Lease) []store.LeaseID {
	ids := make([]store.LeaseID, len(leases))
	for i, l := range leases {
		ids[i] = l.id
	}
	return ids
}
