package holdings

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Lock is a lock of a session of this sidecar. bind:ttl locks are only in the store, because any pod may
// release or extend them. A sidecar may hold a hundred thousand locks, so fields that few locks need are
// separate, in terms and changes. A Lock fills an allocator size class of 112 bytes; the next is 128.
type Lock struct {
	// Key, Token and Traceparent (the acquire's) never change.
	Key   string
	Token int64
	s     *Session
	under atomic.Pointer[heartbeat.Lease] // the lock is a user of this lease until letGo
	// acquiredAt is the store's time, in nanoseconds since 1970. since is the local time since the start of the set.
	acquiredAt  int64
	since       time.Duration
	Traceparent string
	request     uuid.UUID // the request id of the grant; zero: none
	*terms
	*changes // s.mu guards it

	facts atomic.Uint32

	// s.mu guards the following fields.

	// unpublished: the app does not know of the lock yet, because its call has not returned or does not have
	// all of its keys.
	unpublished bool
	letGo       bool
	// ofGroup: the lock belongs to a call for several keys.
	ofGroup bool
}

// The facts of a lock are bits of one word, because three booleans would take more memory: see TestLocksAreSmall.
const (
	isVerified   = 1 << iota
	isShare      // changes under s.mu, from false to true only
	isDowngraded // the store was asked to make the lock shared, and may have done so
)

func (h *Lock) is(fact uint32) bool { return h.facts.Load()&fact != 0 }

// setTo sets a fact, and returns its previous value.
func (h *Lock) setTo(fact uint32, so bool) (before bool) {
	if so {
		return h.facts.Or(fact)&fact != 0
	}
	return h.facts.And(^fact)&fact != 0
}

// IsVerified reports whether the store had the lock when its lease was last verified in the present history.
func (h *Lock) IsVerified() bool { return h.is(isVerified) }

// SetVerified sets that fact.
func (h *Lock) SetVerified(so bool) { h.setTo(isVerified, so) }

// IsShare reports whether the lock is shared: the key may have other holders.
func (h *Lock) IsShare() bool { return h.is(isShare) }

// IsDowngraded reports whether an exclusive lock may have become a share in the store.
func (h *Lock) IsDowngraded() bool { return h.is(isDowngraded) }

// Lease returns the lease that the lock is held under.
func (h *Lock) Lease() *heartbeat.Lease { return h.under.Load() }

// letGoLocked ends the use of the lease, because the lock is lost or its release is settled. The caller holds s.mu.
func (h *Lock) letGoLocked() {
	h.letGo = true
	h.Lease().Unpin()
}

// terms are properties of the request that most locks lack. Those locks share plain.
type terms struct {
	owner string
	// ttl is the requested TTL, zero if the lease has the same one. The app may rely on the lock for this
	// time, although the lease lasts longer.
	ttl time.Duration
	// until is the end of its MaxHold, zero for none. The timer outlived then fires. The session's mutex
	// guards the timer.
	until    time.Time
	outlived *time.Timer
	// minHold is the MinHold of the attempt.
	minHold time.Duration
	// span is nil if the acquire is not recorded.
	span *observe.Hold
	// cohort is nil for most locks.
	cohort *Cohort
}

// changes are properties that change while a lock is held. Most locks share unchanged, so change makes a
// copy first.
type changes struct {
	data     []byte          // replaced, never changed
	stopping *store.Stopping // replaced, never changed
	// entered are the living entries, by number; nil: only the entry of the grant.
	entered []entry
	// reentries is how often the lock was entered again.
	reentries int
	// limit and slot are those of a share.
	limit, slot int
}

var (
	plain     = &terms{}
	unchanged = &changes{}
)

func termsOf(w *Won) *terms {
	shorter := w.Req.TTL < w.Lease.TTL()
	if w.Req.Owner == "" && w.Req.MaxHold == 0 && w.Req.MinHold == 0 && !shorter && w.Span == nil && w.Cohort == nil {
		return plain
	}
	t := &terms{owner: w.Req.Owner, until: w.Until, minHold: w.Req.MinHold, span: w.Span, cohort: w.Cohort}
	if shorter {
		t.ttl = w.Req.TTL
	}
	return t
}

func changesOf(w *Won) *changes {
	if w.Req.Data == nil && w.Req.Limit == 0 {
		return unchanged
	}
	return &changes{data: w.Req.Data, limit: w.Req.Limit, slot: w.Slot}
}

// Of reports whether s holds the lock.
func (h *Lock) Of(s *Session) bool { return h.s == s }

func (h *Lock) acquired() time.Time { return time.Unix(0, h.acquiredAt) }

func (h *Lock) heldFor(now time.Time) time.Duration { return now.Sub(h.s.set.began) - h.since }

// change returns the changeable properties of h. The caller holds s.mu.
func (h *Lock) change() *changes {
	if h.changes == unchanged {
		own := *unchanged
		h.changes = &own
	}
	return h.changes
}

// Valid reports whether the lease is trusted and the MaxHold is not over. Every read checks this.
func (h *Lock) Valid(t clock.Tick) bool {
	return h.Lease().Alive(t) && !clock.Past(h.until, t.Now)
}

func (h *Lock) remaining(t clock.Tick) time.Duration {
	left := h.Lease().Remaining(t)
	if h.ttl != 0 {
		left = min(left, heartbeat.Reliable(h.ttl))
	}
	return untilAtMost(left, h.until, t.Now)
}

func untilAtMost(d time.Duration, until, now time.Time) time.Duration {
	if until.IsZero() {
		return d
	}
	return max(min(d, until.Sub(now)), 0)
}

// Claim names the lock in calls of the store.
func (h *Lock) Claim() store.Claim {
	c := store.Claim{Key: h.Key, Token: h.Token, Lease: h.Lease().ID()}
	if h.cohort != nil && !h.IsShare() { // the store knows a share by its own token
		c.Served = h.cohort.Served
	}
	return c
}

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

// SetData records new data of the lock, which the store has accepted.
func (h *Lock) SetData(data []byte) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.change().data = data
}

// Lose takes the lock from its session and notifies the app. It returns false if the lock was taken before.
func (h *Lock) Lose(reason types.LostReason) bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.loseLocked(h, reason)
}

// LoseUnder is Lose, unless the lock was moved to another lease.
func (h *Lock) LoseUnder(l *heartbeat.Lease, reason types.LostReason) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.Lease() == l {
		h.s.loseLocked(h, reason)
	}
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

// Outlive ends a lock whose MaxHold is over. The lock is lost and also released, because its lease lives on.
func (h *Lock) Outlive() {
	if h.GiveUp(types.LostMaxHold) {
		h.s.set.obs.MaxHoldOver(h.observed())
	}
}

// GiveUp removes a lock from its session, notifies the session of the loss, and releases the lock. It
// returns false if the session no longer holds the lock. A break also ends its MinHold.
func (h *Lock) GiveUp(reason types.LostReason) bool {
	r := h.newEnd(nil)
	r.atOnce = reason == types.LostForced
	h.s.mu.Lock()
	ok := h.s.forfeitLocked(h, reason)
	if ok {
		h.s.freesLocked(r)
	}
	h.s.mu.Unlock()
	if ok {
		r.send()
	}
	return ok
}

// Signal applies a signal to a holder. It returns false if the grant is not known here.
func (hs *Set) Signal(sig store.Signal) (known bool) {
	h := hs.meantBy(sig)
	if h == nil {
		_, ended := hs.Ended(sig.Key, sig.Token)
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			hs.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if h.GiveUp(types.LostForced) {
			hs.obs.Broken(h.observed())
		}
	}
	return true
}

// meantBy returns the lock that a signal means, or nil. A break names a grant, as does a request to stop a share. A
// request to stop an exclusive lock is for its present holder, so it may name the first member of the cohort.
func (hs *Set) meantBy(sig store.Signal) *Lock {
	if h := hs.Find(sig.Key, sig.Token); h != nil {
		return h
	}
	if h := hs.Get(sig.Key); h != nil && sig.Kind == store.Stop && h.cohort.serves() && store.OfGrant(sig.Token, h.Token) {
		return h
	}
	return nil
}

// stop records a request to stop and notifies the app. It returns false if h is not held, or had the same
// request before.
func (s *Session) stop(h *Lock, sig store.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held.has(h) || h.stopping != nil && sameReason(h.stopping.Reason, sig.Reason) {
		return false
	}
	at := sig.At
	if h.stopping != nil {
		at = h.stopping.At
	}
	s.askLocked(h, &store.Stopping{Reason: sig.Reason, At: at})
	return true
}

// Shown applies a request to stop that the store shows. The request may have arrived between two holders of
// a cohort, when no session could be notified.
func (h *Lock) Shown(asked *store.Stopping) {
	h.s.mu.Lock()
	first := asked != nil && h.stopping == nil && h.s.held.has(h)
	if first {
		h.s.askLocked(h, asked)
	}
	h.s.mu.Unlock()
	if first {
		h.s.set.obs.AskedToStop(h.observed())
	}
}

func (s *Session) askLocked(h *Lock, asked *store.Stopping) {
	h.change().stopping = asked
	if !h.unpublished {
		s.notifyStopLocked(h)
	}
}

func (s *Session) notifyStopLocked(h *Lock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(types.Stop{Key: h.Key, Token: h.Token, Reason: h.stopping.Reason})
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

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

// IsKnownAs reports whether the store may know the lock under this token: its own, or for an exclusive lock
// the first token of a cohort.
func (h *Lock) IsKnownAs(token int64) bool {
	return h.Token == token || !h.IsShare() && store.OfGrant(token, h.Token)
}
