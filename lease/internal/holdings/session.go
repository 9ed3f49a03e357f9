package holdings

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Session owns locks. It ends with its connection, which releases all of them.
type Session struct {
	set      *Set
	id, name string
	ttl      time.Duration
	explicit bool
	needs    hearing.Kind // while it holds locks
	onLost   func(types.Lost)
	onStop   func(types.Stop)
	onEnd    func(types.EndReason)
	reach    func() time.Duration // may be nil

	// ending is closed when the session ends, released when its locks are released.
	ending   chan struct{}
	released chan struct{}

	// Requests are the calls with request ids that run in the session. They have a mutex of their own.
	Requests repeat.Requests

	// mu guards the following fields.
	mu          sync.Mutex
	ended       bool
	held        lockMap
	undelivered int // number of locks in held that count as pending
	pending     int // calls that may still get a lock; they count towards the limit
	lost        map[grantRef]loss
	// releasing are the releases of the session's locks that the store has not confirmed.
	releasing map[*Release]struct{}
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

// Within limits for how long the app may rely on a lock of the session: see [types.SessionOptions.Reach].
func (s *Session) Within(expiresIn time.Duration) time.Duration {
	if s == nil || s.reach == nil {
		return expiresIn
	}
	return min(expiresIn, s.reach())
}

// ExpiresIn is how long the app may rely on locks with the session's TTL without further news.
func (s *Session) ExpiresIn() time.Duration { return s.Within(s.leaseLeft()) }

// leaseLeft is how long locks with the session's TTL stay valid if the store does not answer any more.
func (s *Session) leaseLeft() time.Duration {
	if l, t := s.set.cfg.Leases.Get(s.ttl), clock.Read(s.set.clk); l != nil && l.Alive(t) {
		return min(l.Remaining(t), heartbeat.Reliable(s.ttl))
	}
	return heartbeat.Reliable(s.ttl)
}

// Held is the number of locks that the session holds.
func (s *Session) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.count() - s.undelivered
}

// Find returns the lock that the session holds under this token, or nil.
func (s *Session) Find(key string, token int64) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held.find(key, token); h != nil && !h.undelivered {
		return h
	}
	return nil
}

// First returns the session's delivered lock of a key, or nil. Of several shares it returns the one with
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
		if !h.undelivered && (first == nil || h.Token < first.Token) && h.Valid(clock.Read(s.set.clk)) {
			first = h
		}
	}
	return first
}

// Owns reports whether the session has a delivered lock of a key, and whether that is a share.
func (s *Session) Owns(key string) (held, share bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.firstLocked(key)
	return h != nil, h != nil && h.IsShare()
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
		if !h.undelivered && strings.HasPrefix(h.Key, req.Prefix) && h.Key > req.After {
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

// End tells how a session ends; only the first call has an effect. The channel is closed when the store has confirmed the
// releases of its locks, or when their leases are dead.
func (s *Session) End(reason types.EndReason) <-chan struct{} {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return s.released
	}
	// From now on, a grant does not enter the session, but is handed back.
	s.ended = true
	// All its locks leave it, and the app is told of each one that it loses. Lost locks that the store may still have are released, too.
	early := s.forgetLostEarlyLocked()
	var left atomic.Int64
	left.Store(int64(s.held.count() + len(early)))
	settled := func() {
		if left.Add(-1) == 0 {
			close(s.released)
		}
	}
	releases := make([]*Release, 0, s.held.count()+len(early))
	for _, h := range early {
		releases = append(releases, h.newUnrequestedRelease(settled))
	}
	for h := range s.held.all {
		r := h.newUnrequestedRelease(settled)
		r.ofSession = true
		lost := sessionLosses[reason] // empty: the app has ended the session
		s.forgetLocked(h, End{Lost: lost, Release: r})
		if lost != "" {
			s.notifyLossLocked(h, lost)
		}
		releases = append(releases, r)
	}
	// Its waiting calls see this and leave: see attempt.Call.Await.
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
	// In the background, the lane gathers them: mostly one or two statements are sent.
	for _, r := range releases {
		s.set.rel.Release(r)
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
