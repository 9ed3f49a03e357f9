package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// HandOn gives a released lock to the next member of its cohort that still waits. The store learns this with a
// later release, or when the cohort's time is over. HandOn returns false if the store must choose: no member is
// left, the next member is not certain, the sidecar drains, or the lease is no longer used. served are the
// attempts that a claim to the store must name.
func (aq *Acquirer) HandOn(p holdings.Passed) (served []store.AttemptID, given bool) {
	c := p.Cohort()
	served = c.Served
	for !aq.IsDraining() && !aq.leases.Retired(p.Lease()) {
		half, ok := c.Next()
		if !ok {
			break
		}
		b, certain := aq.queue.next(p.Key, half)
		if !certain {
			break
		}
		if b == nil { // it left the queue
			continue
		}
		switch next, outcome := b.takeNext(&p.Grant, p.Lease(), c); outcome {
		case taken:
			if len(c.Served) == 0 || !aq.clk.Now().Before(c.Until) { // otherwise an earlier HandOn has done this
				aq.tellLater(next, p.Key)
			}
			return next.Served, true
		case ended:
			served = next.Served
		case elsewhere:
			return served, false
		case leaves:
		}
	}
	return served, false
}

// nextOutcome is the result of giving a lock to the next member of its cohort.
type nextOutcome uint8

const (
	taken nextOutcome = iota + 1
	// leaves: its call no longer waits.
	leaves
	// ended: its session or lease has just ended, and the attempt with it.
	ended
	// elsewhere: it waits under another lease.
	elsewhere
)

// next returns the attempt for a key with this half of an id, or nil. certain is false if several match.
func (q *queue) next(key string, half store.HalfID) (b *Attempt, certain bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch named := q.attempts[half]; {
	case len(named) == 0:
		return nil, true
	case len(named) > 1 || named[0].req.Key != key:
		return nil, false
	default:
		return named[0], true
	}
}

// takeNext gives an attempt the lock of its cohort, which is held under a lease. next is the attempt's cohort.
func (b *Attempt) takeNext(ans *store.Answer, under *heartbeat.Lease, c *holdings.Cohort) (next *holdings.Cohort, _ nextOutcome) {
	t := clock.Read(b.aq.clk)
	ans.ExpiresIn = under.Remaining(t)
	b.mu.Lock()
	switch {
	case b.phase == cancelling || b.phase == over || b.unwanted || b.timeUp || b.positionLost:
		b.mu.Unlock()
		return nil, leaves
	case b.phase != enqueuing && b.phase != queued || b.Lease() != under || b.req.Bind != types.BindSession:
		b.mu.Unlock()
		return nil, elsewhere
	}
	next = c.Serve(b.id)
	if !b.takeAndUnlock(ans, time.Time{}, t, next) {
		b.mu.Lock()
		b.result = types.Grant{} // the next member gets this token
		b.mu.Unlock()
		b.end()
		return next, ended
	}
	b.end()
	return next, taken
}

// extendCohort lets calls that the store has just queued follow a lock of this sidecar without the store.
func (aq *Acquirer) extendCohort(ans *store.Answer) {
	if h := aq.holdings.Get(ans.Lock.Key); h != nil {
		h.Cohort().Extend(ans.Lock.Token, ans.Cohort)
	}
}

// tellLater makes the store know the present holder when the time of a cohort is over, unless this is the first
// member. If the key is between two holders then, HandOn calls tellLater again.
func (aq *Acquirer) tellLater(c *holdings.Cohort, key string) {
	aq.later.After(c.Until.Sub(aq.clk.Now()), func() {
		if h := aq.holdings.Get(key); h != nil && h.IsServed() && h.Cohort().Until.Equal(c.Until) {
			aq.tell(h)
		}
	})
}

// Tell makes the store know a lock that the sidecar handed on, and waits for the answer.
func (aq *Acquirer) Tell(ctx context.Context, h *holdings.Lock) error {
	if !h.IsServed() {
		return nil
	}
	v, err := lanes.Submit(ctx, aq.lanes.Amends, h.Change())
	return types.Judged("amend", v.Status, err)
}

// tell makes the store know a lock that the sidecar handed on. It repeats this until the store confirms or the
// lock is over.
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
			h.Lose(types.LostExpired) // the store decides
		default:
			h.Shown(v.Lock.Stopping)
		}
	})
	if err != nil {
		aq.cfg.Logger.Debug("the store was not told who holds a key: the sidecar stops", "key", h.Key)
	}
}
