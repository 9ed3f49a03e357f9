package holdings

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// CohortTime is for how long after a grant by the store the sidecar hands a lock on without the store.
// Meanwhile, other sidecars see the first member of the cohort as the holder.
const CohortTime = 100 * time.Millisecond

// Cohort is what a lock knows of its cohort: see [store.Answer]. Each lock that the sidecar hands on has
// its own Cohort.
type Cohort struct {
	// Served are the attempts that had the lock since the store granted it, this lock's attempt last. If it
	// is empty, the store granted this lock.
	Served []store.AttemptID
	// Waiting are the next attempts.
	Waiting []store.HalfID
	// Until is when the sidecar must ask the store again.
	Until time.Time

	handedOn atomic.Bool
}

// NewCohort returns the cohort of a grant by the store, or nil.
func NewCohort(ans *store.Answer, now time.Time) *Cohort {
	if len(ans.Cohort) == 0 {
		return nil
	}
	return &Cohort{Waiting: ans.Cohort, Until: now.Add(CohortTime)}
}

// serves reports whether this sidecar has handed the lock on since the store granted it.
func (c *Cohort) serves() bool { return c != nil && len(c.Served) > 0 }

// HandedOn reports whether the lock was given to the next attempt of its cohort. Then the store must not free it.
func (h *Lock) HandedOn() bool { return h.cohort != nil && h.cohort.handedOn.Load() }

// IsServed reports whether the store knows, or knew, another lock of this cohort as the holder.
func (h *Lock) IsServed() bool { return h.cohort.serves() && !h.IsShare() }

// Cohort returns the cohort of the lock, or nil.
func (h *Lock) Cohort() *Cohort { return h.cohort }

// Passed is a released lock for the next attempt of its cohort.
type Passed struct {
	*Lock
	// Grant is the grant for that attempt.
	Grant store.Answer
}

// handOn gives the lock to the next attempt of its cohort. It returns false if the store must do that.
func (r *Release) handOn() bool {
	h, c := r.h, r.h.cohort
	if c == nil || len(c.Waiting) == 0 || r.claim.Outcome != store.NoOutcome || r.claim.AtOnce || r.toStore {
		return false
	}
	set := h.s.set
	if t := clock.Read(set.clk); !t.Now.Before(c.Until) || !h.Lease().Alive(t) {
		return false
	}
	next := store.Answer{
		Outcome: store.Granted, Token: h.Token + 1, AcquiredAt: h.acquired().Add(r.HeldFor), HandedBy: r.claim.Traceparent,
	}
	served, given := set.cfg.HandOn(Passed{h, next})
	if !given {
		r.claim.Served = served
		return false
	}
	c.handedOn.Store(true)
	r.WasTried(nil)
	r.IsSettled()
	return true
}

// Change makes the store know the lock. If the store knows an earlier lock of the cohort as the holder,
// this lock becomes the holder, with its data.
func (h *Lock) Change() store.Change {
	c := store.Change{Claim: h.Claim()}
	if h.cohort.serves() && !h.IsShare() {
		c.Session, c.Owner, c.AcquiredAt, c.Traceparent = h.s.name, h.owner, h.acquired(), h.Traceparent
		h.s.mu.Lock()
		c.Data = h.data
		h.s.mu.Unlock()
	}
	return c
}

// Patch is a change of the lock's data.
func (h *Lock) Patch(data []byte) store.Change {
	c := h.Change()
	c.SetData, c.Data = true, data
	return c
}
