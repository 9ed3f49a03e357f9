package holdings

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	// Until is when the sidecar must ask the store again.
	Until time.Time

	*line
	handedOn atomic.Bool
}

// line is what the locks of a cohort have in common.
type line struct {
	// granted is the token of the store's grant.
	granted int64

	mu sync.Mutex
	// served contains the Served of each lock of the cohort, which are parts of it. It only grows.
	served []store.AttemptID
	// waiting are the next attempts. It may also name some that were served, or left the queue.
	waiting []store.HalfID
}

// NewCohort returns the cohort of a grant by the store.
func NewCohort(ans *store.Answer, now time.Time) *Cohort {
	return &Cohort{line: &line{granted: ans.Token, waiting: ans.Cohort}, Until: now.Add(CohortTime)}
}

// Extend adds the attempts that the store has queued since it granted the lock under this token. waiting has all that
// the store would let the sidecar serve now, so it never needs more tokens than the grant has. Extend does nothing
// if the lock belongs to another grant.
func (c *Cohort) Extend(granted int64, waiting []store.HalfID) {
	if c == nil || c.granted != granted {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = waiting
}

// Next removes the next attempt from the cohort, and returns it.
func (c *Cohort) Next() (half store.HalfID, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return half, false
	}
	half, c.waiting = c.waiting[0], c.waiting[1:]
	return half, true
}

// Serve returns the cohort of the next lock, which the sidecar gives to this attempt.
func (c *Cohort) Serve(id store.AttemptID) *Cohort {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = append(c.served, id)
	return &Cohort{line: c.line, Served: slices.Clip(c.served), Until: c.Until}
}

// serves reports whether this sidecar has handed the lock on since the store granted it.
func (c *Cohort) serves() bool { return c != nil && len(c.Served) > 0 }

// HandedOn reports whether the lock was given to the next attempt of its cohort. Then the store must not free it.
func (h *Lock) HandedOn() bool { return h.cohort != nil && h.cohort.handedOn.Load() }

// IsServed reports whether the store knows, or knew, another lock of this cohort as the holder.
func (h *Lock) IsServed() bool { return h.cohort.serves() && !h.IsShare() }

// Cohort returns the cohort of the lock, or nil.
func (h *Lock) Cohort() *Cohort { return h.cohort }
