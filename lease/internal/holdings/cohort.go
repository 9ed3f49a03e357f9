package holdings

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// CohortTime is how long after a grant of the store a lock is handed on without the store. Others see
// the first of a cohort for so long.
const CohortTime = 100 * time.Millisecond

// Cohort is what a lock knows of its cohort: see [store.Answer]. Each lock that is handed on here has
// its own.
type Cohort struct {
	// Served had the lock since the store granted it, this lock's attempt last. Empty: the store
	// granted this lock.
	Served []store.AttemptID
	// Waiting are the next.
	Waiting []store.HalfID
	// Until is when the store must be asked again.
	Until time.Time

	handedOn atomic.Bool
}

// NewCohort is the cohort of a grant by the store, or nil.
func NewCohort(ans *store.Answer, now time.Time) *Cohort {
	if len(ans.Cohort) == 0 {
		return nil
	}
	return &Cohort{Waiting: ans.Cohort, Until: now.Add(CohortTime)}
}

// serves reports whether others were served since the store granted the lock.
func (c *Cohort) serves() bool { return c != nil && len(c.Served) > 0 }

// HandedOn reports whether the lock was given to the next of its cohort. Then it is not the store's to free.
func (h *Lock) HandedOn() bool { return h.cohort != nil && h.cohort.handedOn.Load() }

// IsServed reports whether the store knows another of the lock's cohort as the holder, or did so.
func (h *Lock) IsServed() bool { return h.cohort.serves() && !h.IsShare() }

// Cohort is that of the lock, or nil.
func (h *Lock) Cohort() *Cohort { return h.cohort }

// Passed is a lock that its holder has released, for the next of its cohort.
type Passed struct {
	*Lock
	// Grant is the next one.
	Grant store.Answer
}

// handOn gives the lock to the next of its cohort. It reports false if the store must do that.
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

// Change makes the lock known to the store. If the store knows an earlier one of its cohort as the holder,
// this one becomes the holder, with its data.
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
