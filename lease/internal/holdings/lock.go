package holdings

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Held is the number of locks that the session holds.
func (s *Session) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.count() - s.unpublished
}

// Find returns the lock that the session holds under this token, or nil.
func (s *Session) Find(key string, token int64) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held.find(key, token); h != nil && !h.unpublished {
		return h
	}
	return nil
}

// First returns the session's published lock of a key, or nil. Of several shares it returns the one with
// the smallest token.
func (s *Session) First(key string) *Lock {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.firstLocked(key)
}

// List returns what the session holds, at most one lock more than the limit. For nil, it returns nothing. A
// shared key appears once, without its other holders. A lock that may have become a share is listed as one.
func (s *Session) List(req types.ListRequest) (views []types.View) {
	if s == nil {
		return nil
	}
	var held []*Lock
	s.mu.Lock()
	for h := range s.held.all {
		if !h.unpublished && strings.HasPrefix(h.Key, req.Prefix) && h.Key > req.After {
			held = append(held, h)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(held, func(a, b *Lock) int { return cmp.Compare(a.Key, b.Key) })
	for _, h := range held {
		last := len(views) - 1
		if last >= req.Limit {
			break
		}
		if h.Valid(clock.Read(s.set.clk)) && (last < 0 || views[last].Key != h.Key) { // several shares of a key are shown once
			v := types.View{Lock: h.State(), Mine: true, Cached: true}
			v.Shared = v.Shared || h.IsDowngraded()
			views = append(views, v)
		}
	}
	return views
}

// ExpiresIn is how long locks with the session's TTL stay valid if the store does not answer any more.
func (s *Session) ExpiresIn() time.Duration {
	if l, t := s.set.cfg.Lease(s.ttl), clock.Read(s.set.clk); l != nil && l.Alive(t) {
		return min(l.Remaining(t), heartbeat.Reliable(s.ttl))
	}
	return heartbeat.Reliable(s.ttl)
}

// AdmitAll counts a group, if the session may have all its locks. Members keep their slots until they are published.
func (s *Session) AdmitAll(slots []*Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(len(slots)); err != nil {
		return err
	}
	s.pending += len(slots)
	for _, p := range slots {
		p.taken = true
	}
	return nil
}

// LockOf returns the last lock that the slot's call has won, or nil. The session may not hold it any more.
func (s *Session) LockOf(p *Slot) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.lock
}

// HasMember reports whether the session has the member of a slot, and it is valid.
func (s *Session) HasMember(p *Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasMemberLocked(p)
}

// Of reports whether s holds the lock.
func (h *Lock) Of(s *Session) bool { return h.s == s }

// IsKnownAs reports whether the store may know the lock under this token: its own, or for an exclusive lock
// the first token of a cohort.
func (h *Lock) IsKnownAs(token int64) bool {
	return h.Token == token || !h.IsShare() && store.OfGrant(token, h.Token)
}

// IsVerified reports whether the store had the lock when its lease was last verified in the present history.
func (h *Lock) IsVerified() bool { return h.is(isVerified) }

// SetVerified sets that fact.
func (h *Lock) SetVerified(so bool) { h.setTo(isVerified, so) }

func (h *Lock) acquired() time.Time { return time.Unix(0, h.acquiredAt) }

func (h *Lock) heldFor(now time.Time) time.Duration { return now.Sub(h.s.set.began) - h.since }

func (h *Lock) observed() observe.Lock {
	return observe.Lock{Key: h.Key, Token: h.Token, Session: h.s.name, Owner: h.owner, Traceparent: h.Traceparent}
}

// State is the lock as other callers see it. It lacks calls that wait through other sidecars, and other
// holders of a shared lock.
func (h *Lock) State() store.Lock {
	h.s.mu.Lock()
	data, stopping := h.data, h.stopping
	h.s.mu.Unlock()
	set, t := h.s.set, clock.Read(h.s.set.clk)
	return store.Lock{
		Shared: h.IsShare(),
		Key:    h.Key, Held: true, Token: h.Token, QueueLength: set.cfg.QueueLength(h.Key), Stopping: stopping,
		Holder: store.Holder{
			Instance: set.cfg.Instance, Pod: set.cfg.Pod, Session: h.s.name, Owner: h.owner,
			Lease: h.Lease().ID(), Renewed: true,
			AcquiredAt: h.acquired(), HeldFor: h.heldFor(t.Now), ExpiresIn: h.remaining(t),
			Data: data, Traceparent: h.Traceparent,
		},
	}
}

// Claim names the lock in calls of the store.
func (h *Lock) Claim() store.Claim {
	c := store.Claim{Key: h.Key, Token: h.Token, Lease: h.Lease().ID()}
	if h.cohort != nil && !h.IsShare() { // the store knows a share by its own token
		c.Served = h.cohort.Served
	}
	return c
}

// change returns the changeable properties of h. The caller holds s.mu.
func (h *Lock) change() *changes {
	if h.changes == unchanged {
		own := *unchanged
		h.changes = &own
	}
	return h.changes
}

// SetData records new data of the lock, which the store has accepted.
func (h *Lock) SetData(data []byte) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.change().data = data
}

// Moved makes h a user of the lease to which the store has moved it. It returns false if h has ended.
func (h *Lock) Moved(to *heartbeat.Lease) bool {
	h.s.mu.Lock()
	if h.letGo {
		h.s.mu.Unlock()
		return false
	}
	to.Pin() // the mover has pinned it, so it is open
	old := h.under.Swap(to)
	h.s.mu.Unlock()
	old.Unpin()
	if to.Lost() { // Lose may have read the lease's locks before h was added
		h.LoseUnder(to, to.LossReason())
	}
	return true
}

// IsDowngraded reports whether an exclusive lock may have become a share in the store.
func (h *Lock) IsDowngraded() bool { return h.is(isDowngraded) }

// Downgrade records that the store is asked to turn an exclusive lock into a share. From then on this may have
// happened: others are granted shares, and the cohort does not get the lock. first: the store was not asked before.
// Errors: [ErrNotHeld]; [types.InvalidError], because the outer entries rely on the exclusive lock.
func (s *Session) Downgrade(h *Lock) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.held.has(h):
		return false, ErrNotHeld
	case len(h.entered) > 1:
		return false, types.Invalidf("field mode", "lock %q is entered %d times; only a lock that is entered once can become shared", h.Key, h.depth())
	}
	return !h.setTo(isDowngraded, true), nil
}

// KeepsExclusive records that the store did not downgrade the lock.
func (h *Lock) KeepsExclusive() { h.setTo(isDowngraded, false) }

// BecomeShare records that the store has made the lock a share.
func (h *Lock) BecomeShare(limit, slot int) {
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.IsShare() {
		return
	}
	held := s.held.remove(h)
	s.set.share(h)
	if held {
		s.held.put(h)
	}
	c := h.change()
	c.limit, c.slot = limit, slot
}

// share turns an exclusive lock into a share. The caller holds the mutex of its session.
func (hs *Set) share(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	was := sh.locks.remove(h)
	h.setTo(isShare, true)
	if was {
		sh.locks.put(h)
	}
}

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
