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

// Lock is a lock of a session of this sidecar. bind:ttl locks are not kept here: any pod may
// release or extend them, so only the store knows. A sidecar may hold a hundred thousand locks, so
// fields that few of them need are apart, in terms and changes. It fills a size class of the
// allocator, 112 bytes; the next is 128.
type Lock struct {
	// Key, Token and Traceparent (of the acquire) never change.
	Key   string
	Token int64
	s     *Session
	under atomic.Pointer[heartbeat.Lease] // it is a user of that until it has letGo
	// acquiredAt is the store's time, in nanoseconds since 1970; since is the local time since the
	// set began.
	acquiredAt  int64
	since       time.Duration
	Traceparent string
	request     uuid.UUID // the id of the request that was granted it, zero: none
	*terms
	*changes // s.mu guards it

	facts atomic.Uint32

	// s.mu guards the fields below.

	// unpublished: the app does not know of the lock. Its call has not been told yet, or does not
	// have all of its keys.
	unpublished bool
	letGo       bool
	// ofGroup: it was won by a call for several keys.
	ofGroup bool
}

// Facts of a lock are bits of one word, because a lock with three booleans takes more memory: see TestLocksAreSmall.
const (
	isVerified   = 1 << iota
	isShare      // it changes under s.mu, from false to true
	isDowngraded // the store was asked to make it shared, and may have done so
)

func (h *Lock) is(fact uint32) bool { return h.facts.Load()&fact != 0 }

// setTo sets a fact, and returns whether it was so before.
func (h *Lock) setTo(fact uint32, so bool) (before bool) {
	if so {
		return h.facts.Or(fact)&fact != 0
	}
	return h.facts.And(^fact)&fact != 0
}

// IsVerified reports whether the store has the lock in the history in which its lease was last verified.
func (h *Lock) IsVerified() bool { return h.is(isVerified) }

// SetVerified notes whether it has.
func (h *Lock) SetVerified(so bool) { h.setTo(isVerified, so) }

// IsShare reports whether the lock is shared: the key may have other holders.
func (h *Lock) IsShare() bool { return h.is(isShare) }

// IsDowngraded reports whether an exclusive lock may be shared by now, for others.
func (h *Lock) IsDowngraded() bool { return h.is(isDowngraded) }

// Lease is the one that the lock is held under.
func (h *Lock) Lease() *heartbeat.Lease { return h.under.Load() }

// letGoLocked ends the use of the lease: the lock is lost, or its release is settled. s.mu is held.
func (h *Lock) letGoLocked() {
	h.letGo = true
	h.Lease().Unpin()
}

// terms are how few locks were asked for. The others share plain.
type terms struct {
	owner string
	// ttl is what was asked for, zero if its lease has the same. The app is told that it may rely
	// on the lock for so long, though the lease lasts longer.
	ttl time.Duration
	// until is when its MaxHold is over, zero for none. outlived fires then; the session's mutex guards it.
	until    time.Time
	outlived *time.Timer
	// minHold is that of the attempt that won it.
	minHold time.Duration
	// span is nil where the acquire is not recorded.
	span *observe.Hold
	// cohort is nil for most.
	cohort *Cohort
}

// changes are what changes while a lock is held. Most locks share unchanged, so change makes a copy first.
type changes struct {
	data     []byte          // replaced, never changed
	stopping *store.Stopping // replaced, never changed
	// entered are the living entries, by number; nil: that of the grant alone.
	entered []entry
	// reentries is how often it was entered again.
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

// change returns what may be changed of h. s.mu is held.
func (h *Lock) change() *changes {
	if h.changes == unchanged {
		own := *unchanged
		h.changes = &own
	}
	return h.changes
}

// Valid reports whether the lease is trusted and the MaxHold is not over. Every read asks.
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

// Claim is how the store is told which lock is meant.
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

// State is the lock as others see it, without the calls that wait through other sidecars, and without other
// holders of a shared one.
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

// SetData notes the data of the lock, which the store has taken.
func (h *Lock) SetData(data []byte) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.change().data = data
}

// Lose takes the lock from its session and tells the app. It reports false when somebody else took
// it before.
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

// Moved makes h a user of the lease to which the store has moved it. It reports false if h has ended.
func (h *Lock) Moved(to *heartbeat.Lease) bool {
	h.s.mu.Lock()
	if h.letGo {
		h.s.mu.Unlock()
		return false
	}
	to.Pin() // the mover is one, so it is not closed
	old := h.under.Swap(to)
	h.s.mu.Unlock()
	old.Unpin()
	if to.Lost() { // the one who lost it may not have seen h there
		h.LoseUnder(to, to.LossReason())
	}
	return true
}
