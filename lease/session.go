package lease

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// Session owns locks. It ends with the connection that it belongs to, and with
// it all that it holds; nothing is granted to it afterwards.
type Session struct {
	m        *Manager
	id, name string
	ttl      time.Duration
	explicit bool
	onLost   func(types.Lost)
	onStop   func(types.Stop)
	onEnd    func(types.EndReason)

	// ending is closed when the session ends, released when all that it held is.
	ending   chan struct{}
	released chan struct{}

	mu          sync.Mutex
	ended       bool
	held        map[string]*heldLock
	unpublished int // of held, that count as pending
	pending     int // calls that may still get a lock, for the limit
	lost        map[grantRef]types.LostReason
	// requests are the calls with request ids that are under way in the session.
	requests repeat.Requests
	// freeing are the releases of the session's locks that the store has not confirmed.
	freeing map[string]*release
	// entrances are the waiting calls that may enter a key when its owner gets it.
	entrances map[string]map[*entrance]struct{}
}

// OpenSession opens a session. It fails with [LimitError], and with
// [ErrDraining] while the sidecar shuts down.
func (m *Manager) OpenSession(o types.SessionOptions) (*Session, error) {
	s := &Session{
		m: m, id: randomHex(16), name: o.Name, ttl: o.TTL, explicit: o.Explicit, onLost: o.OnLost, onStop: o.OnStop, onEnd: o.OnEnd,
		ending: make(chan struct{}), released: make(chan struct{}),
		held: make(map[string]*heldLock),
	}
	if s.name == "" {
		s.name = randomHex(4)
	}
	if s.ttl == 0 {
		s.ttl = m.cfg.TTL
	}
	m.sessionsMu.Lock()
	defer m.sessionsMu.Unlock()
	if m.isDraining() { // under the mutex: Stop ends every session that is in the list
		return nil, types.ErrDraining
	}
	if len(m.sessions) >= m.cfg.MaxSessions {
		return nil, &LimitError{What: "sessions", Setting: "LOCKSIDECAR_MAX_SESSIONS", Limit: m.cfg.MaxSessions}
	}
	m.sessions[s.id] = s
	return s, nil
}

// Session finds a session that other connections may join, by its id. It fails
// with [ErrSessionEnded].
func (m *Manager) Session(id string) (*Session, error) {
	m.sessionsMu.Lock()
	defer m.sessionsMu.Unlock()
	s := m.sessions[id]
	if s == nil || !s.explicit {
		return nil, types.ErrSessionEnded
	}
	return s, nil
}

// ID is what a connection shows to join the session. It is a secret of the app.
func (s *Session) ID() string { return s.id }

// Name is what others see as the holder's session.
func (s *Session) Name() string { return s.name }

// TTL is the default TTL of the session's locks.
func (s *Session) TTL() time.Duration { return s.ttl }

// ExpiresIn is how long the session's locks with the default TTL can be relied
// on if nothing more is heard of the store.
func (s *Session) ExpiresIn() time.Duration {
	if l := s.m.leases.get(s.ttl); l != nil && l.alive(clock.Read(s.m.clk)) {
		return min(l.remaining(clock.Read(s.m.clk)), reliable(s.ttl))
	}
	return reliable(s.ttl)
}

// Held is how many locks the session holds.
func (s *Session) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held) - s.unpublished
}

// End ends the session, whoever comes first. Its waits end, all that it holds is
// released in the background; the channel is closed when the store has confirmed
// that, or when the leases under the locks have died.
func (s *Session) End(reason types.EndReason) <-chan struct{} {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return s.released
	}
	s.ended = true
	releases := make(map[*heldLock]*release, len(s.held))
	for _, h := range s.held {
		r := s.m.newEnd(h)
		r.ofSession = true
		s.takeLocked(h, grantEnd{lost: sessionLosses[reason], release: r})
		releases[h] = r
	}
	close(s.ending)
	if s.onEnd != nil {
		s.onEnd(reason)
	}
	s.mu.Unlock()

	s.m.obs.SessionEnded(sessionEnds[reason])
	s.m.forget(s)
	left := int64(len(releases))
	if left == 0 {
		close(s.released)
	}
	for h, r := range releases {
		r.done = func() {
			if atomic.AddInt64(&left, -1) == 0 {
				close(s.released)
			}
		}
		s.m.send(h.span.Context(), r)
	}
	return s.released
}

// sessionLosses is what a late claim hears of a lock that ended with its session.
// Locks of a session that the app itself ended count as released.
var sessionLosses = map[types.EndReason]types.LostReason{
	types.EndDropped:  types.LostDisconnected,
	types.EndDeleted:  "",
	types.EndShutdown: types.LostShutdown,
}

// quotaSlot is a call's share of its session's limit, from its admission until its
// lock counts by itself. The session's mutex guards it.
type quotaSlot struct {
	taken bool
	lock  *heldLock // what the call's attempt has won last
}

// admit counts a call in, if the session may have one lock more.
func (s *Session) admit(p *quotaSlot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(1); err != nil {
		return err
	}
	p.taken = true
	s.pending++
	return nil
}

// roomLocked says why the session may not have n locks more.
func (s *Session) roomLocked(n int) error {
	if s.ended {
		return types.ErrSessionEnded
	}
	if limit := s.m.cfg.MaxLocksPerSession; len(s.held)-s.unpublished+s.pending+n > limit {
		return &LimitError{What: "locks in this session", Setting: "LOCKSIDECAR_MAX_LOCKS_PER_SESSION", Limit: limit}
	}
	return nil
}

func (s *Session) hasEnded() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}

// leave counts a call out.
func (s *Session) leave(p *quotaSlot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveLocked(p)
}

func (s *Session) leaveLocked(p *quotaSlot) {
	if p.taken {
		p.taken = false
		s.pending--
	}
}

// addMember makes h the session's, as a part: the app does not know of it. It reports false when the session has ended: then
// nobody holds h, and the caller hands it back. It returns the lock that another
// session believes to hold under that key, if any: the store says that it is lost,
// and the caller tells so when it holds no mutex.
func (s *Session) addMember(h *heldLock, p *quotaSlot) (before *heldLock, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, false
	}
	if own := s.held[h.key]; own != nil {
		s.loseLocked(own, types.LostExpired)
	}
	h.unpublished = true
	s.unpublished++
	s.held[h.key] = h
	p.lock = h
	s.m.sessionLocks.Add(1)
	if !h.until.IsZero() {
		h.outlived = time.AfterFunc(h.until.Sub(s.m.clk.Now()), func() { s.m.outlive(h) })
	}
	return s.m.held.put(h), true
}

// find returns the lock that the session holds under this token, or nil.
func (s *Session) find(key string, token int64) *heldLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[key]; h != nil && h.token == token && !h.unpublished {
		return h
	}
	return nil
}

// take takes h from the session and remembers what became of it. It reports
// false when somebody else did so before: whoever takes a lock decides.
func (s *Session) take(h *heldLock, e grantEnd) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(h, e)
}

func (s *Session) takeLocked(h *heldLock, e grantEnd) bool {
	if s.held[h.key] != h {
		return false
	}
	delete(s.held, h.key)
	if h.unpublished {
		s.unpublished--
	}
	s.observeEnd(h, e)
	s.m.held.remove(h)
	s.m.recentEnds.add(grantRef{h.key, h.token}, e)
	s.freesLocked(e.release)
	s.m.sessionLocks.Add(-1)
	if h.outlived != nil {
		h.outlived.Stop()
	}
	return true
}

// freesLocked notes a release until it is settled. s.mu is held.
func (s *Session) freesLocked(r *release) {
	if r == nil || s.ended {
		return
	}
	if s.freeing == nil {
		s.freeing = make(map[string]*release)
	}
	s.freeing[r.h.key] = r
}

// freed forgets a release.
func (s *Session) freed(r *release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeing[r.h.key] == r {
		delete(s.freeing, r.h.key)
	}
}

// freeingOf is the release of a key that is under way, or nil.
func (s *Session) freeingOf(key string) *release {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freeing[key]
}

// loseLock takes h from the session because its lease is lost, and the lock with
// it, and tells the app. It reports false when somebody else took it before.
func (s *Session) loseLock(h *heldLock, reason types.LostReason) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loseLocked(h, reason)
}

func (s *Session) loseLocked(h *heldLock, reason types.LostReason) bool {
	forfeited := s.forfeitLocked(h, reason)
	if forfeited {
		h.lease.unpin()
	}
	return forfeited
}

// forfeitLocked takes h from the session and tells the app that it is lost. It
// reports false when somebody else took it before.
func (s *Session) forfeitLocked(h *heldLock, reason types.LostReason) bool {
	if !s.takeLocked(h, grantEnd{lost: reason}) {
		return false
	}
	if h.unpublished {
		return true // its call finds out, the app knows nothing
	}
	ref := grantRef{h.key, h.token}
	if s.lost == nil {
		s.lost = make(map[grantRef]types.LostReason)
	}
	if len(s.lost) < s.m.cfg.MaxLocksPerSession {
		s.lost[ref] = reason
	}
	if s.onLost != nil {
		s.onLost(types.Lost{Key: h.key, Token: h.token, Reason: reason})
	}
	return true
}

// lossOf tells whether the session lost a lock, and why.
func (s *Session) lossOf(ref grantRef) (types.LostReason, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, ok := s.lost[ref]
	return reason, ok
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, says its documentation
	return hex.EncodeToString(b)
}
