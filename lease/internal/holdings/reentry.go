package holdings

import (
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// A release by token ends the newest entry. A release by request id ends the entry of that request.

type entry struct {
	number  int       // as reported to the caller
	serial  int       // unique while the lock is held, unlike number
	request uuid.UUID // the id of the request that made the entry; zero: none
	answers int       // how many callers were answered with it
}

// entries returns the living entries of h, by number. The caller holds s.mu.
func (h *Lock) entries() []entry {
	if h.entered != nil {
		return h.entered
	}
	return []entry{{number: 1, serial: 1, request: h.request, answers: 1}}
}

// depth is the number of the newest entry. The caller holds s.mu.
func (h *Lock) depth() int {
	if n := len(h.entered); n > 0 {
		return h.entered[n-1].number
	}
	return 1
}

// add makes a new entry. The caller holds s.mu.
func (h *Lock) add(request uuid.UUID) entry {
	c := h.change()
	c.entered = h.entries()
	c.reentries++
	e := entry{number: h.depth() + 1, serial: 1 + c.reentries, request: request, answers: 1}
	c.entered = append(c.entered, e)
	return e
}

// entryOf returns the entry that a request has made. The caller holds s.mu.
func (h *Lock) entryOf(request uuid.UUID) (e entry, ok bool) {
	if h.entered == nil {
		return entry{number: 1, serial: 1}, h.request == request && request != uuid.Nil
	}
	for _, e := range h.entered {
		if e.request == request && request != uuid.Nil {
			return e, true
		}
	}
	return entry{}, false
}

// Admits reports whether this request, made in the session of h, may enter h again.
func (h *Lock) Admits(req *types.Request) bool {
	return req.Reentrant && req.Owner != "" && h.owner == req.Owner
}

// Enter enters the lock that the owner of a reentrant request holds in this session. It returns false if there is none, or if
// it may have become a share: the entry would rely on an exclusive lock.
func (s *Session) Enter(req *types.Request) (types.Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held.exclusive[req.Key]
	if s.ended || h == nil || h.undelivered || h.IsDowngraded() || !h.Admits(req) || !h.Valid(clock.Read(s.set.clk)) {
		return types.Grant{}, false
	}
	g := s.grantLocked(h)
	if g.ExpiresIn <= 0 { // its time ended after the check of Valid
		return types.Grant{}, false
	}
	e := h.add(req.RequestID)
	g.Reentry, g.Entry = e.number, e.serial
	return g, true
}

// Expects reports whether the store shows that the request's owner holds the key in this session, although the winning call has
// not returned: the request then waits for that call. The store may also show a lock that ended here.
func (s *Session) Expects(l *store.Lock, req *types.Request) bool {
	if s == nil || !req.Reentrant || req.Owner == "" || l.Shared || l.Holder.Owner != req.Owner || l.Holder.HoldPending ||
		l.Holder.Session != s.name || l.Holder.Instance != s.set.cfg.Instance {
		return false
	}
	if h := s.set.Get(l.Key); h != nil && h.s != s { // it belongs to a session of the same name
		return false
	}
	if _, ended := s.set.ends.get(grantRef{l.Key, l.Token}); ended {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held.exclusive[l.Key]
	return h == nil || !h.undelivered || !h.ofGroup // a group may keep it undelivered for long
}

// Again returns what a request with this id was granted, if the session still holds it. A repeat changes
// nothing. The caller has the turn of the request.
func (s *Session) Again(key string, request uuid.UUID) (types.Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.againLocked(key, request)
	if ok {
		s.held.find(key, g.Token).countAnswer(g.Entry)
	}
	return g, ok
}

func (s *Session) againLocked(key string, request uuid.UUID) (types.Grant, bool) {
	h := s.ofRequestLocked(key, request)
	if h == nil || !h.Valid(clock.Read(s.set.clk)) {
		return types.Grant{}, false
	}
	g := s.grantLocked(h)
	e, ok := h.entryOf(request)
	g.Reentry, g.Entry = e.number, e.serial
	return g, ok && g.ExpiresIn > 0
}

// AgainAll returns what a request for several keys was granted, or nil if the session does not hold all of it.
func (s *Session) AgainAll(admissions []*Admission, request uuid.UUID) []types.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	grants := make([]types.Grant, 0, len(admissions))
	for _, a := range admissions {
		g, ok := s.againLocked(a.Key, request)
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

// ofRequestLocked returns the delivered lock of a key that a request with this id was granted or has
// entered, or nil. The caller holds s.mu.
func (s *Session) ofRequestLocked(key string, request uuid.UUID) *Lock {
	for h := range s.held.ofKey(key) {
		if _, ok := h.entryOf(request); ok && !h.undelivered {
			return h
		}
	}
	return nil
}

// countAnswer records that a repeat is answered with an entry. The caller holds s.mu.
func (h *Lock) countAnswer(serial int) {
	c := h.change()
	c.entered = h.entries()
	for i := range c.entered {
		if c.entered[i].serial == serial {
			c.entered[i].answers++
		}
	}
}

// Has returns the lock that a request with this id has entered, or nil.
func (s *Session) Has(key string, request uuid.UUID) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofRequestLocked(key, request)
}

// GrantOf returns a lock as its holder sees it now. It returns false if the session does not hold it, or
// its time is over.
func (s *Session) GrantOf(h *Lock) (types.Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grantLocked(h)
	return g, s.held.has(h) && g.ExpiresIn > 0
}

func (s *Session) grantLocked(h *Lock) types.Grant {
	return types.Grant{
		Key: h.Key, Token: h.Token, Session: s.name, Bind: types.BindSession, ExpiresIn: h.remaining(clock.Read(s.set.clk)),
		AcquiredAt: h.AcquiredAt(), Reentry: h.depth(), Stopping: h.stopping, Shared: h.IsShare(), Limit: h.limit, Slot: h.slot,
	}
}

// The reasons why [Session.ReleaseEntry] does not end an entry.
var (
	ErrNotHeld = errors.New("the session does not hold the lock any more")
	ErrOver    = errors.New("the entry was released before")
)

// ReleaseEntry ends the entry of h that r means. With the last entry it takes h out of the session, and the caller
// sends r. left is the number of the newest remaining entry. Errors: [ErrNotHeld]; [ErrOver] if the entry
// does not exist; [types.ReentryError] if r names another number of entries.
func (s *Session) ReleaseEntry(h *Lock, r *Release) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held.has(h) {
		return 0, ErrNotHeld
	}
	if left, err = h.releaseEntryLocked(r); err == nil && left == 0 {
		s.forgetLocked(h, End{Release: r})
	}
	return left, err
}

// releaseEntryLocked ends the entry of h that r means, and returns the number of the newest remaining entry. If it is the last entry,
// the caller ends the lock. The caller holds s.mu.
func (h *Lock) releaseEntryLocked(r *Release) (left int, err error) {
	if n := r.reentry; n != 0 && n != h.depth() {
		return 0, &types.ReentryError{Key: h.Key, Given: n, Have: h.depth()}
	}
	entries := h.entries()
	i := len(entries) - 1
	if r.means != nil {
		i = slices.IndexFunc(entries, r.means)
	}
	if i < 0 {
		return h.depth(), ErrOver
	}
	if entries[i].answers--; r.undelivered && entries[i].answers > 0 { // another call was answered with this entry
		h.change().entered = entries
		return h.depth(), nil
	}
	if len(entries) > 1 {
		h.change().entered = slices.Delete(entries, i, i+1)
		return h.depth(), nil
	}
	r.Claim.AtOnce = r.undelivered && h.reentries == 0 // unless a reentry was already answered
	return 0, nil
}
