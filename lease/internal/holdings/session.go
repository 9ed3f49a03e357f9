package holdings

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
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
	lost        map[grantRef]types.LostReason
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

// ExpiresIn is how long locks with the session's TTL stay valid if the store does not answer any more.
func (s *Session) ExpiresIn() time.Duration {
	if l, t := s.set.cfg.Lease(s.ttl), clock.Read(s.set.clk); l != nil && l.Alive(t) {
		return min(l.Remaining(t), heartbeat.Reliable(s.ttl))
	}
	return heartbeat.Reliable(s.ttl)
}

// Held is the number of locks that the session holds.
func (s *Session) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.count() - s.unpublished
}

// End ends the session; only the first call has an effect. Its waits end, and its locks are released in the
// background. The channel is closed when the store has confirmed that, or when their leases are dead.
func (s *Session) End(reason types.EndReason) <-chan struct{} {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return s.released
	}
	s.ended = true
	var left atomic.Int64
	left.Store(int64(s.held.count()))
	settled := func() {
		if left.Add(-1) == 0 {
			close(s.released)
		}
	}
	releases := make([]*Release, 0, s.held.count())
	for h := range s.held.all {
		r := h.newEnd(settled)
		r.ofSession = true
		s.takeLocked(h, End{Lost: sessionLosses[reason], Release: r})
		releases = append(releases, r)
	}
	close(s.ending)
	if s.onEnd != nil {
		s.onEnd(reason)
	}
	s.mu.Unlock()

	s.set.obs.SessionEnded(sessionEnds[reason])
	s.set.forget(s)
	if len(releases) == 0 {
		close(s.released)
	}
	for _, r := range releases {
		r.send()
	}
	return s.released
}

// sessionLosses are the reasons that late claims get. If the app ended the session, its locks count as released.
var sessionLosses = map[types.EndReason]types.LostReason{
	types.EndDropped:  types.LostDisconnected,
	types.EndDeleted:  "",
	types.EndShutdown: types.LostShutdown,
}

var sessionEnds = map[types.EndReason]string{types.EndDropped: "dropped", types.EndDeleted: "deleted", types.EndShutdown: "shutdown"}

// Find returns the lock that the session holds under this token, or nil.
func (s *Session) Find(key string, token int64) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held.find(key, token); h != nil && !h.unpublished {
		return h
	}
	return nil
}

// Owns reports whether the session has a published lock of a key, and whether that is a share.
func (s *Session) Owns(key string) (held, share bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownsLocked(key)
}

func (s *Session) ownsLocked(key string) (held, share bool) {
	h := s.firstLocked(key)
	return h != nil, h != nil && h.IsShare()
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

func (s *Session) firstLocked(key string) (first *Lock) {
	for h := range s.held.ofKey(key) {
		if !h.unpublished && (first == nil || h.Token < first.Token) && h.Valid(clock.Read(s.set.clk)) {
			first = h
		}
	}
	return first
}

// take removes h from the session. It returns false if h was removed before.
func (s *Session) take(h *Lock, e End) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(h, e)
}

func (s *Session) takeLocked(h *Lock, e End) bool {
	if !s.held.remove(h) {
		return false
	}
	if h.unpublished {
		s.unpublished--
	}
	s.observeEnd(h, e)
	s.set.remove(h)
	s.set.ends.add(grantRef{h.Key, h.Token}, e)
	s.freesLocked(e.Release)
	s.set.locks.Add(-1)
	if h.outlived != nil {
		h.outlived.Stop()
	}
	return true
}

func (s *Session) loseLocked(h *Lock, reason types.LostReason) bool {
	forfeited := s.forfeitLocked(h, reason)
	if forfeited {
		h.letGoLocked()
	}
	return forfeited
}

// forfeitLocked removes h from the session and notifies the app. It returns false if h was removed before.
func (s *Session) forfeitLocked(h *Lock, reason types.LostReason) bool {
	if !s.takeLocked(h, End{Lost: reason}) {
		return false
	}
	if h.unpublished {
		return true // its call finds out, and the app does not know of the lock
	}
	ref := grantRef{h.Key, h.Token}
	if s.lost == nil {
		s.lost = make(map[grantRef]types.LostReason)
	}
	if len(s.lost) < s.set.cfg.MaxLocksPerSession {
		s.lost[ref] = reason
	}
	if s.onLost != nil {
		s.onLost(types.Lost{Key: h.Key, Token: h.Token, Reason: reason})
	}
	return true
}

// List returns what the session holds, at most one lock more than the limit. For nil, it returns nothing. A
// shared key appears once, without its other holders.
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
			views = append(views, types.View{Lock: h.State(), Mine: true, Cached: true})
		}
	}
	return views
}

// LossOf reports whether the session lost a lock, and why.
func (s *Session) LossOf(key string, token int64) (types.LostReason, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, ok := s.lost[grantRef{key, token}]
	return reason, ok
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, by its documentation
	return hex.EncodeToString(b)
}

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

// AdmitAll counts a group, if the session may have all its locks and holds none of the keys, because the
// group would otherwise wait for its own session. Members keep their slots until they are published.
func (s *Session) AdmitAll(slots []*Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slots {
		if held, _ := s.ownsLocked(p.Key); held {
			return types.Invalidf("field keys", "lock %q is held by this session already", p.Key)
		}
	}
	if err := s.roomLocked(len(slots)); err != nil {
		return err
	}
	s.pending += len(slots)
	for _, p := range slots {
		p.taken = true
	}
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

// HandBackMember releases the lock of a slot. settled is called after the last try. If the session does not
// hold the lock, it does nothing and returns false.
func (s *Session) HandBackMember(p *Slot, settled func()) bool {
	h := s.LockOf(p)
	r := h.newEnd(settled)
	if !s.take(h, End{Release: r}) {
		return false
	}
	r.send()
	return true
}

// HandBack ends, in the background, an entry whose answer could not be delivered. The last entry releases the lock.
func (s *Session) HandBack(g types.Grant) {
	h := s.Find(g.Key, g.Token)
	if h == nil {
		return
	}
	r := h.newEnd(nil)
	r.undelivered, r.means = true, func(e entry) bool { return e.serial == g.Entry }
	if entries, err := s.Exit(h, r); err == nil && entries == 0 {
		r.send()
	}
}

// AgainAll returns what a request for several keys was granted, or nil if the session does not hold all of it.
func (s *Session) AgainAll(slots []*Slot, request uuid.UUID) []types.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]types.Grant, 0, len(slots))
	for _, p := range slots {
		g, ok := s.againLocked(p.Key, request)
		if !ok {
			return nil
		}
		grants = append(grants, g)
	}
	for _, g := range grants {
		s.held.find(g.Key, g.Token).countAnswer(g.Entry)
	}
	s.set.obs.Cached(observe.CachedRepeat)
	return grants
}
