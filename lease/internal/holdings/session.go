package holdings

import (
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Session owns locks. It ends with its connection, which releases all of them.
type Session struct {
	set      *Set
	id, name string
	ttl      time.Duration
	explicit bool
	onLost   func(types.Lost)
	onStop   func(types.Stop)
	onEnd    func(types.EndReason)

	// ending is closed when the session ends, released when its locks are released.
	ending   chan struct{}
	released chan struct{}

	mu          sync.Mutex
	ended       bool
	held        lockMap
	unpublished int // number of locks in held that count as pending
	pending     int // calls that may still get a lock; they count towards the limit
	lost        map[grantRef]loss
	// Requests are the calls with request ids that run in the session.
	Requests repeat.Requests
	// freeing are the releases of the session's locks that the store has not confirmed.
	freeing map[*Release]struct{}
	// entrances are the calls that wait to enter, by key.
	entrances map[string]map[*Entrance]struct{}
}

// Ending is closed when the session ends.
func (s *Session) Ending() <-chan struct{} { return s.ending }

// HasEnded reports whether the session has ended.
func (s *Session) HasEnded() bool { return types.Closed(s.ending) }

// Explicit reports whether other connections may join the session.
func (s *Session) Explicit() bool { return s.explicit }

// ID is shown by a connection that joins the session. It is a secret of the app.
func (s *Session) ID() string { return s.id }

// Name is what others see as the holder's session.
func (s *Session) Name() string { return s.name }

// TTL is the default TTL of the session's locks.
func (s *Session) TTL() time.Duration { return s.ttl }

// Slot counts a call in its session's limit, from its admission until its lock counts itself. The session's
// mutex guards all fields except Left.
type Slot struct {
	Key   string // set in a call for several keys
	taken bool
	lock  *Lock // the last lock that the call's attempt has won
	// Left is how long the lock was valid when it was published.
	Left time.Duration
}

// Admit counts a call, if the session may have one more lock.
func (s *Session) Admit(p *Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	p.taken = true
	s.pending++
	return nil
}

func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.set.cfg.MaxLocksPerSession; s.held.count()-s.unpublished+s.pending+n > limit {
		return &types.LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

// Leave ends the counting of a call.
func (s *Session) Leave(p *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(p)
}

func (s *Session) leaveLocked(p *Slot) {
	if p.taken {
		p.taken = false
		s.pending--
	}
}

// Owns reports whether the session has a published lock of a key, and whether that is a share.
func (s *Session) Owns(key string) (held, share bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.firstLocked(key)
	return h != nil, h != nil && h.IsShare()
}

func (s *Session) firstLocked(key string) (first *Lock) {
	for h := range s.held.ofKey(key) {
		if !h.unpublished && (first == nil || h.Token < first.Token) && h.Valid(clock.Read(s.set.clk)) {
			first = h
		}
	}
	return first
}

// Won is a lock that was granted to a request of the session.
type Won struct {
	Req        *types.Request
	Token      int64
	Slot       int // of a share
	Lease      *heartbeat.Lease
	AcquiredAt time.Time
	// Until is the end of its MaxHold, zero for none.
	Until time.Time
	Span  *observe.Hold
	// Cohort is the cohort of the grant, or nil.
	Cohort *Cohort
}

// NewCohort returns the cohort of a grant by the store.
func NewCohort(ans *store.Answer, now time.Time) *Cohort {
	return &Cohort{line: &line{granted: ans.Token, waiting: ans.Cohort}, Until: now.Add(CohortTime)}
}

// AddMember adds a lock as a member of the session. It returns false if the session has ended, or the lock
// is not valid at the time t; then the caller hands the lock back. On success, the lock takes over the
// caller's pin of the lease. before are locks of this sidecar that the new grant shows to be lost. The
// caller loses them when it holds no mutex.
func (s *Session) AddMember(w Won, p *Slot, t clock.Tick) (before []*Lock, ok bool) {
	h := &Lock{
		Key: w.Req.Key, Token: w.Token, s: s, acquiredAt: w.AcquiredAt.UnixNano(), since: t.Now.Sub(s.set.began),
		Traceparent: w.Req.Traceparent, terms: termsOf(&w), changes: changesOf(&w), request: w.Req.RequestID,
		ofGroup: p.Key != "",
	}
	h.setTo(isShare, w.Req.Shared)
	h.under.Store(w.Lease)
	if !h.Valid(t) {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, false
	}
	for _, own := range s.held.over(h) {
		s.loseLocked(own, types.LostExpired)
	}
	s.held.put(h)
	h.unpublished = true
	s.unpublished++
	p.lock = h
	s.set.locks.Add(1)
	if !h.until.IsZero() {
		h.outlived = time.AfterFunc(h.until.Sub(s.set.clk.Now()), h.Outlive)
	}
	return s.set.put(h), true
}

func (s *Session) hasMemberLocked(p *Slot) bool {
	return p.lock != nil && s.held.has(p.lock) && p.lock.Valid(clock.Read(s.set.clk))
}

// Publish makes the members of slots visible to the app. If a member is lost, it does nothing and returns false.
func (s *Session) Publish(slots ...*Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if !s.hasMemberLocked(p) {
			return false
		}
		if p.Left = p.lock.remaining(clock.Read(s.set.clk)); p.Left <= 0 {
			return false
		}
	}
	for _, p := range slots {
		h := p.lock
		h.unpublished = false
		h.span.Begin(h.Key, h.Token, s.name)
		s.unpublished--
		s.leaveLocked(p)
		for e := range s.entrances[h.Key] {
			if h.Admits(e.req) {
				e.Wake()
			}
		}
		s.notifyStopLocked(h)
	}
	return true
}

func (s *Session) notifyStopLocked(h *Lock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(types.Stop{Key: h.Key, Token: h.Token, Reason: h.stopping.Reason})
	}
}

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

// lockMap finds locks by key and token. A key has either one exclusive lock or shares with different
// tokens, of which one session may hold several.
type lockMap struct {
	exclusive map[string]*Lock
	shares    map[string]map[int64]*Lock // nil before the first share
	shared    int                        // number of shares
}

func newLockMap() lockMap { return lockMap{exclusive: make(map[string]*Lock)} }

// count is the number of locks.
func (m *lockMap) count() int { return len(m.exclusive) + m.shared }

// find returns the lock of a key under a token, or nil.
func (m *lockMap) find(key string, token int64) *Lock {
	if h := m.exclusive[key]; h != nil && h.Token == token {
		return h
	}
	return m.shares[key][token]
}

// has reports whether h is in the map: not removed, and not replaced by a later grant.
func (m *lockMap) has(h *Lock) bool {
	if h.IsShare() {
		return m.shares[h.Key][h.Token] == h
	}
	return m.exclusive[h.Key] == h
}

// over returns the locks that must have ended because h was granted. If h is a share, an exclusive lock
// that may be downgraded has not ended.
func (m *lockMap) over(h *Lock) (others []*Lock) {
	if own := m.exclusive[h.Key]; own != nil && (!h.IsShare() || !own.IsDowngraded()) {
		others = append(others, own)
	}
	if !h.IsShare() {
		for _, share := range m.shares[h.Key] {
			others = append(others, share)
		}
	}
	return others
}

func (m *lockMap) put(h *Lock) {
	if !h.IsShare() {
		m.exclusive[h.Key] = h
		return
	}
	if m.shares == nil {
		m.shares = make(map[string]map[int64]*Lock)
	}
	if m.shares[h.Key] == nil {
		m.shares[h.Key] = make(map[int64]*Lock)
	}
	m.shares[h.Key][h.Token] = h
	m.shared++
}

// ofKey yields the locks of a key: one exclusive lock, or shares.
func (m *lockMap) ofKey(key string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		if h := m.exclusive[key]; h != nil && !yield(h) {
			return
		}
		for _, h := range m.shares[key] {
			if !yield(h) {
				return
			}
		}
	}
}

// all yields each lock.
func (m *lockMap) all(yield func(*Lock) bool) {
	for _, h := range m.exclusive {
		if !yield(h) {
			return
		}
	}
	for _, ofKey := range m.shares {
		for _, h := range ofKey {
			if !yield(h) {
				return
			}
		}
	}
}

const shards = 64

type shard struct {
	mu    sync.Mutex
	locks lockMap
}

func (hs *Set) shard(key string) *shard {
	return &hs.shards[maphash.String(hs.seed, key)%shards]
}

// Get returns the exclusive lock that a session holds under a key, or nil.
func (hs *Set) Get(key string) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.exclusive[key]
}

// Find returns the lock or share that a session holds under a token, or nil.
func (hs *Set) Find(key string, token int64) *Lock {
	sh := hs.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.locks.find(key, token)
}

// put adds h and returns the locks that must have ended because h was granted.
func (hs *Set) put(h *Lock) (over []*Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	over = sh.locks.over(h)
	sh.locks.put(h)
	return over
}
