package attempt

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// HandOn gives a released lock to the next of its cohort that still waits. The store hears of it with a later
// release, or when the cohort's time is over. It reports false if the store must choose: nobody of the cohort
// is left, it is not certain who is next, the sidecar drains, or the lease is not used any more. served are
// those whom a claim to the store must name.
func (aq *Acquirer) HandOn(p holdings.Passed) (served []store.AttemptID, given bool) {
	c := p.Cohort()
	served = c.Served
	for i, half := range c.Waiting {
		if aq.IsDraining() || aq.leases.Retired(p.Lease()) {
			break
		}
		b, certain := aq.queue.next(p.Key, half)
		if !certain {
			break
		}
		if b == nil { // it left
			continue
		}
		with := append(slices.Clip(served), b.id)
		next := &holdings.Cohort{Served: with, Waiting: c.Waiting[i+1:], Until: c.Until}
		switch b.takeNext(&p.Grant, p.Lease(), next) {
		case taken:
			if len(c.Served) == 0 || !aq.clk.Now().Before(c.Until) { // else a call before did that
				aq.tellLater(next, p.Key)
			}
			return with, true
		case ended:
			served = with
		case elsewhere:
			return served, false
		case leaves:
		}
	}
	return served, false
}

// nextOutcome is what became of an attempt to give a lock to the next of its cohort.
type nextOutcome uint8

const (
	taken nextOutcome = iota + 1
	// leaves: its call does not wait any more.
	leaves
	// ended: its session or lease has ended in this moment, and the attempt with it.
	ended
	// elsewhere: it waits under another lease.
	elsewhere
)

// takeNext gives an attempt the lock of its cohort, which is held under a lease.
func (b *Attempt) takeNext(ans *store.Answer, under *heartbeat.Lease, next *holdings.Cohort) nextOutcome {
	t := clock.Read(b.aq.clk)
	ans.ExpiresIn = under.Remaining(t)
	b.mu.Lock()
	switch {
	case b.phase == cancelling || b.phase == over || b.unwanted || b.timeUp || b.positionLost:
		b.mu.Unlock()
		return leaves
	case b.phase != enqueuing && b.phase != queued || b.Lease() != under || b.req.Bind != types.BindSession:
		b.mu.Unlock()
		return elsewhere
	}
	if !b.takeAndUnlock(ans, time.Time{}, t, next) {
		b.mu.Lock()
		b.result = types.Grant{} // the next one gets this token
		b.mu.Unlock()
		b.end()
		return ended
	}
	b.end()
	return taken
}

// tellLater makes the store know who holds the key when the time of a cohort is over, if that was not the
// first. If the key is between two holders then, HandOn does it again.
func (aq *Acquirer) tellLater(c *holdings.Cohort, key string) {
	aq.later.After(c.Until.Sub(aq.clk.Now()), func() {
		if h := aq.holdings.Get(key); h != nil && h.IsServed() && h.Cohort().Until.Equal(c.Until) {
			aq.tell(h)
		}
	})
}

// Tell makes a lock known to the store that was handed on here, and waits for that.
func (aq *Acquirer) Tell(ctx context.Context, h *holdings.Lock) error {
	if !h.IsServed() {
		return nil
	}
	v, err := lanes.Submit(ctx, aq.lanes.Amends, h.Change())
	return types.Judged("amend", v.Status, err)
}

// tell makes a lock known to the store that was handed on here, until the store confirms it or the lock is over.
func (aq *Acquirer) tell(h *holdings.Lock) {
	err := aq.lanes.Amends.Submit(context.Background(), h.Change(), func(v store.Verdict, err error) {
		switch err := types.Judged("amend", v.Status, err); {
		case err != nil:
			aq.later.After(clock.Jittered(clock.RetryPause), func() {
				if h.Valid(clock.Read(aq.clk)) && aq.holdings.Get(h.Key) == h {
					aq.tell(h)
				}
			})
		case v.Status != store.Holds:
			h.Lose(types.LostExpired) // the store is right
		default:
			h.Shown(v.Lock.Stopping)
		}
	})
	if err != nil {
		aq.cfg.Logger.Debug("the store was not told who holds a key: the sidecar stops", "key", h.Key)
	}
}
