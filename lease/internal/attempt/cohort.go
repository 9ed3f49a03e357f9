package attempt

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// CohortTime is for how long after a grant by the store the sidecar hands a lock on without the store.
// Meanwhile, other sidecars see the first member of the cohort as the holder.
const CohortTime = 100 * time.Millisecond

// cohort is what the locks have in common that this sidecar gives one after another, since one grant of the store: see [store.Answer].
type cohort struct {
	// granted is the token of the store's grant.
	granted int64

	mu sync.Mutex
	// all contains the served of each lock of the cohort, which are parts of it. It only grows.
	all []store.AttemptID
	// waiting are the next attempts. It may also name some that were served, or left the queue.
	waiting []store.HalfID
}

// member is what one lock knows of its cohort. It is a [holdings.Member].
type member struct {
	served []store.AttemptID // see Served
	// until is when the sidecar must ask the store again.
	until time.Time
	// handedOn: the lock was given to the next attempt.
	handedOn atomic.Bool

	*cohort
	// If no attempt of the cohort follows, the sidecar may keep the key: see keepable.go.
	keepable
}

// newMember returns the first member of a cohort: the lock of a grant by the store.
func newMember(ans *store.Answer, now time.Time) *member {
	return &member{cohort: &cohort{granted: ans.Token, waiting: ans.Cohort}, until: now.Add(CohortTime)}
}

// memberOf returns what a lock knows of its cohort, or nil.
func memberOf(h *holdings.Lock) *member {
	m, _ := h.Member().(*member)
	return m
}

// HandedOn reports whether a lock was given to the next attempt of its cohort. Then the store must not free it.
func HandedOn(h *holdings.Lock) bool {
	m := memberOf(h)
	return m != nil && m.handedOn.Load()
}

// Served are the attempts that had the lock since the store granted it, this lock's attempt last. If it is empty, the store
// granted this lock.
func (m *member) Served() []store.AttemptID { return m.served }

// extend replaces the list of next waiters by the store's newer one for the grant under this token. That list never needs
// more tokens than the grant has. extend does nothing if the lock belongs to another grant.
func (m *member) extend(granted int64, waiting []store.HalfID) {
	if m == nil || m.granted != granted {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = waiting
}

// next removes the next attempt from the cohort, and returns it.
func (c *cohort) next() (half store.HalfID, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return half, false
	}
	half, c.waiting = c.waiting[0], c.waiting[1:]
	return half, true
}

// serve returns the member after m: the lock that the sidecar gives to this attempt.
func (m *member) serve(id store.AttemptID) *member {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, id)
	return &member{cohort: m.cohort, served: slices.Clip(m.all), until: m.until}
}

// handOn gives a released lock to the next call of its cohort, without a statement. It returns false if the store must free
// the lock or choose the next waiter.
func (aq *Acquirer) handOn(r *holdings.Release) bool {
	// An outcome, a request to stop, and the end of a MinHold are for the store.
	h, m := r.Lock, memberOf(r.Lock)
	if m == nil || r.Claim.Outcome != store.NoOutcome || r.Claim.AtOnce || r.ToStore {
		return false
	}
	// The store granted the lock under this lease, and lets the sidecar hand it on for a while.
	if t := clock.Read(aq.clk); !t.Now.Before(m.until) || !h.Lease().Alive(t) {
		return false
	}
	// The grant has a limited number of tokens. A lock that was taken from a kept grant is ahead of what the store counts.
	if !store.OfGrant(m.granted, h.Token+1) {
		return false
	}
	grant := store.Answer{
		Outcome: store.Granted, Token: h.Token + 1, AcquiredAt: h.AcquiredAt().Add(r.HeldFor), HandedBy: r.Claim.Traceparent,
	}
	served, given := aq.giveNext(h, m, &grant)
	if !given {
		r.Claim.Served = served // the store skips them
		return false
	}
	m.handedOn.Store(true)
	return true
}

// giveNext gives the lock after h to the next attempt of its cohort that still waits. The store learns this with a
// later release, or when the cohort's time is over. It returns false if the store must choose: no attempt is
// left, the next one is not certain, the sidecar drains, or the lease is no longer used. served are the
// attempts that a claim to the store must name.
func (aq *Acquirer) giveNext(h *holdings.Lock, m *member, grant *store.Answer) (served []store.AttemptID, given bool) {
	served = m.served
	for !aq.IsDraining() && !aq.leases.Retired(h.Lease()) {
		half, ok := m.next()
		if !ok {
			break
		}
		b, certain := aq.Queue.next(h.Key, half)
		if !certain {
			break
		}
		if b == nil { // it left the queue
			continue
		}
		switch next, outcome := b.takeNext(grant, h.Lease(), m); outcome {
		case taken:
			if len(m.served) == 0 || !aq.clk.Now().Before(m.until) { // otherwise an earlier hand-over has done this
				aq.tellLater(next, h.Key)
			}
			return next.served, true
		case ended:
			served = next.served
		case elsewhere:
			return served, false
		case leaves:
		}
	}
	return served, false
}

// nextOutcome is the result of giving a lock to the next attempt of its cohort.
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
func (q *Queue) next(key string, half store.HalfID) (b *Attempt, certain bool) {
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

// takeNext gives an attempt the lock after that of m, which is held under a lease.
func (b *Attempt) takeNext(ans *store.Answer, under *heartbeat.Lease, m *member) (next *member, _ nextOutcome) {
	t := clock.Read(b.aq.clk)
	ans.ExpiresIn = under.Remaining(t)
	b.mu.Lock()
	switch {
	case b.phase == cancelling || b.phase == over || b.leaving != 0:
		b.mu.Unlock()
		return nil, leaves
	case b.phase != enqueuing && b.phase != queued || b.Lease() != under || b.req.Bind != types.BindSession:
		b.mu.Unlock()
		return nil, elsewhere
	}
	next = m.serve(b.id)
	got := b.receiveLocked(ans, time.Time{}, t, next)
	if !got.won {
		b.result = types.Grant{} // the next attempt gets this token
	}
	b.mu.Unlock()
	b.noteReceived(ans, &got, t.Now)
	b.end()
	if !got.won {
		return next, ended
	}
	return next, taken
}

// extendCohort lets calls that the store has just queued follow a lock of this sidecar without the store.
func (aq *Acquirer) extendCohort(ans *store.Answer) {
	if h := aq.holdings.Get(ans.Lock.Key); h != nil {
		memberOf(h).extend(ans.Lock.Token, ans.Cohort)
	}
}

// tellLater makes the store know the present holder when the time of a cohort is over, unless this is the first
// member. If the key is between two holders then, giveNext calls tellLater again.
func (aq *Acquirer) tellLater(m *member, key string) {
	aq.later.After(m.until.Sub(aq.clk.Now()), func() {
		if h := aq.holdings.Get(key); h != nil && h.IsServed() && memberOf(h).until.Equal(m.until) {
			aq.tell(h)
		}
	})
}

// Tell makes the store know a lock that the sidecar handed on, and waits for the answer.
func (aq *Acquirer) Tell(ctx context.Context, h *holdings.Lock) error {
	if !h.IsServed() {
		return nil
	}
	adoption, held := h.Adoption()
	if !held {
		return nil // it has been released
	}
	v, err := lanes.Submit(ctx, aq.lanes.Amends, lanes.Amendment{Adoption: adoption})
	return types.ClaimError("amend", v.Status, err)
}

// tell makes the store know a lock that the sidecar handed on. It repeats this until the store confirms or the
// lock is over.
func (aq *Acquirer) tell(h *holdings.Lock) {
	adoption, held := h.Adoption()
	if !held {
		return // it has been released
	}
	err := aq.lanes.Amends.Submit(context.Background(), lanes.Amendment{Adoption: adoption}, func(v store.Amended, err error) {
		switch err := types.ClaimError("amend", v.Status, err); {
		case err != nil:
			aq.later.Retry(func() {
				if h.Valid(clock.Read(aq.clk)) && aq.holdings.Get(h.Key) == h {
					aq.tell(h)
				}
			})
		case v.Status != store.Holds:
			h.Lose(types.LostStore) // the store decides
		default:
			h.Shown(v.Lock.Stopping)
		}
	})
	if err != nil {
		aq.cfg.Logger.Debug("the store was not told who holds a key: the sidecar stops", "key", h.Key)
	}
}
