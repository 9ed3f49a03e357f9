package holdings

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
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
	under atomic.Pointer[heartbeat.Lease] // the lock is a user of this lease until unpinned
	// acquiredAt is the store's time, in nanoseconds since 1970. since is the local time since the start of the set.
	acquiredAt  int64
	since       time.Duration
	Traceparent string
	request     uuid.UUID // the request id of the grant; zero: none
	*terms
	*changes // s.mu guards it

	facts atomic.Uint32

	// s.mu guards the following fields.

	// undelivered: the app does not know of the lock yet, because its call has not returned or does not have
	// all of its keys.
	undelivered bool
	unpinned    bool
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

func (h *Lock) setTo(fact uint32, so bool) {
	if so {
		h.facts.Or(fact)
	} else {
		h.facts.And(^fact)
	}
}

// IsShare reports whether the lock is shared: the key may have other holders.
func (h *Lock) IsShare() bool { return h.is(isShare) }

// Lease returns the lease that the lock is held under.
func (h *Lock) Lease() *heartbeat.Lease { return h.under.Load() }

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

// terms are properties of the request that most locks lack. Those locks share plain.
type terms struct {
	owner string
	// ttl is the requested TTL, zero if the lease has the same one. The app may rely on the lock for this
	// time, although the lease lasts longer.
	ttl time.Duration
	// until is the end of its MaxHold, zero for none. The timer maxHoldTimer then fires. The session's mutex
	// guards the timer.
	until        time.Time
	maxHoldTimer *time.Timer
	// minHold is the MinHold of the attempt.
	minHold time.Duration
	// span is nil if the acquire is not recorded.
	span *observe.Hold
	// member is nil for most locks.
	member Member
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
	// downgrades are the questions to the store that may have made the lock a share.
	downgrades int
}

var (
	plain     = &terms{}
	unchanged = &changes{}
)

func termsOf(w *Won) *terms {
	shorter := w.Req.TTL < w.Lease.TTL()
	if w.Req.Owner == "" && w.Req.MaxHold == 0 && w.Req.MinHold == 0 && !shorter && w.Span == nil && w.Member == nil {
		return plain
	}
	t := &terms{owner: w.Req.Owner, until: w.Until, minHold: w.Req.MinHold, span: w.Span, member: w.Member}
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

// Member is what a lock of a cohort knows of it, as far as the lock's claims need that. Package attempt makes it.
type Member interface {
	// Served are the attempts that had the lock since the store granted it, this lock's attempt last. If it
	// is empty, the store granted this lock.
	Served() []store.AttemptID
	// Tells is called before the store is told of the lock. It returns false if the lock has been released.
	Tells() bool
}

// Member returns what the lock knows of its cohort. It is nil for most locks.
func (h *Lock) Member() Member { return h.member }

// IsServed reports whether the store knows, or knew, another lock of this cohort as the holder.
func (h *Lock) IsServed() bool { return h.wasHandedOn() && !h.IsShare() }

// wasHandedOn reports whether this sidecar has handed the lock on since the store granted it.
func (h *Lock) wasHandedOn() bool { return h.member != nil && len(h.member.Served()) > 0 }

// IsUndelivered reports whether no app knew of a lock that has left its session.
func (h *Lock) IsUndelivered() bool { return h.undelivered }

// Span is the span of the hold; nil if the acquire is not recorded.
func (h *Lock) Span() *observe.Hold { return h.span }

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

// AcquiredAt is the store's time of the grant.
func (h *Lock) AcquiredAt() time.Time { return time.Unix(0, h.acquiredAt) }

func (h *Lock) heldFor(now time.Time) time.Duration { return now.Sub(h.s.set.began) - h.since }

func (h *Lock) observed() observe.Lock {
	return observe.Lock{Key: h.Key, Token: h.Token, Session: h.s.name, Owner: h.owner, Traceparent: h.Traceparent}
}

// State is the lock as other callers see it. It lacks waiting calls, and other holders of a shared lock.
func (h *Lock) State() store.Lock {
	h.s.mu.Lock()
	data, stopping := h.data, h.stopping
	h.s.mu.Unlock()
	set, t := h.s.set, clock.Read(h.s.set.clk)
	return store.Lock{
		Shared: h.IsShare(),
		Key:    h.Key, Held: true, Token: h.Token, Stopping: stopping,
		Holder: store.Holder{
			Instance: set.cfg.Instance, Pod: set.cfg.Pod, Session: h.s.name, Owner: h.owner,
			Lease: h.Lease().ID(), Renewed: true,
			AcquiredAt: h.AcquiredAt(), HeldFor: h.heldFor(t.Now), ExpiresIn: h.remaining(t),
			Data: data, Traceparent: h.Traceparent,
		},
	}
}

// Claim names the lock in calls of the store.
func (h *Lock) Claim() store.Claim {
	c := store.Claim{Key: h.Key, Token: h.Token, Lease: h.Lease().ID()}
	if h.member != nil && !h.IsShare() { // the store knows a share by its own token
		c.Served = h.member.Served()
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
	before := h.bytesLocked()
	h.change().data = data
	if h.s.held.has(h) { // otherwise it counts no more
		h.s.set.bytes.Add(h.bytesLocked() - before)
	}
}

// bytesLocked are the bytes of the lock's key and data. The caller holds s.mu.
func (h *Lock) bytesLocked() int64 { return int64(len(h.Key) + len(h.data)) }

// Patch is a change of the lock's data. held is false if the lock has been released.
func (h *Lock) Patch(data []byte) (a store.Adoption, held bool) {
	a, held = h.Adoption()
	a.SetData, a.Data = true, data
	return a, held
}

// Adoption makes the store show the lock. If the sidecar has handed the lock on since the store's grant, the store may show an earlier lock of the
// cohort: then Served says so, and this lock becomes the holder, with its data. Otherwise Served is empty: the store shows this lock already. held is
// false if the lock has been released: then the store must not be told of it.
func (h *Lock) Adoption() (_ store.Adoption, held bool) {
	if h.member != nil && !h.member.Tells() {
		return store.Adoption{}, false
	}
	c := h.Claim()
	a := store.Adoption{Change: store.Change{Key: c.Key, Token: c.Token, Lease: c.Lease}}
	if h.IsServed() {
		a.Served = c.Served
		a.Session, a.Owner, a.AcquiredAt, a.Traceparent = h.s.name, h.owner, h.AcquiredAt(), h.Traceparent
		h.s.mu.Lock()
		a.Data = h.data
		h.s.mu.Unlock()
	}
	return a, true
}

// Moved makes h a user of the lease to which the store has moved it. It returns false if h has ended.
func (h *Lock) Moved(to *heartbeat.Lease) bool {
	h.s.mu.Lock()
	if h.unpinned {
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
