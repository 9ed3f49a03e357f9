package lease

import (
	"errors"

	"github.com/google/uuid"
)

// A session's lock may be entered again by the owner that holds it: the store is
// not asked and does not know. The lock stays as its first grant made it, but for
// the count of its entries; each release takes one off, the last frees it. An entry
// keeps its number, for a release may name it: one of which the answer was not
// delivered, or that is released by its request id, ends with the one above it, or at once
// if it is the last.

// entry is what few entries of a lock have.
type entry struct {
	request uuid.UUID // the id of the request that made it; the first has its own in the lock
	again   int       // how many repeats of that were told of it, too
	over    bool      // it ends with the one above it
}

// set replaces what an entry has. The caller has a copy of its own.
func (c *changes) set(number int, e entry) {
	if c.entered == nil {
		c.entered = make(map[int]entry)
	}
	c.entered[number] = e
}

// entryOf is the number of the entry that a request has made and that is not over, or 0.
// s.mu is held.
func (h *heldLock) entryOf(request uuid.UUID) int {
	if h.request == request && !h.entered[1].over {
		return 1
	}
	for number, e := range h.entered {
		if e.request == request {
			return number
		}
	}
	return 0
}

// admits reports whether h may be entered again by whoever makes this request in
// the session of h.
func (h *heldLock) admits(req *Request) bool {
	return req.Reentrant && req.Owner != "" && h.owner == req.Owner
}

// enter enters the lock that the request's owner holds in this session. It reports
// false when there is none.
func (s *Session) enter(req *Request) (Grant, bool) {
	if !req.Reentrant {
		return Grant{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[req.Key]
	if s.ended || h == nil || h.part || !h.admits(req) || !h.valid(s.m.clk) {
		return Grant{}, false
	}
	g := s.grantLocked(h)
	if g.ExpiresIn <= 0 { // time has passed since it was valid
		return Grant{}, false
	}
	c := h.change()
	c.entries++
	c.reentered = true
	g.Reentry, g.request = c.entries, req.RequestID
	if req.RequestID != uuid.Nil {
		c.set(g.Reentry, entry{request: req.RequestID})
	}
	return g, true
}

// again is what a request with this id was granted, as long as the session holds it: for a
// repeat, which changes nothing. The caller has the turn of the request.
func (s *Session) again(key string, request uuid.UUID) (Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.againLocked(key, request)
	if ok {
		s.held[key].tellAgain(g.Reentry)
	}
	return g, ok
}

func (s *Session) againLocked(key string, request uuid.UUID) (Grant, bool) {
	h := s.held[key]
	if h == nil || h.part || !h.valid(s.m.clk) {
		return Grant{}, false
	}
	g := s.grantLocked(h)
	g.Reentry, g.request = h.entryOf(request), request
	return g, g.Reentry > 0 && g.ExpiresIn > 0
}

// tellAgain notes that a repeat is told of an entry. s.mu is held.
func (h *heldLock) tellAgain(number int) {
	e := h.entered[number]
	e.again++
	h.change().set(number, e)
}

// againAll is again for all locks of a request for several; nil if it has no id, or one of
// them is not held.
func (s *Session) againAll(calls []*call, request uuid.UUID) []Grant {
	if request == uuid.Nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	grants, now := make([]Grant, 0, len(calls)), s.m.clk.Now()
	for _, c := range calls {
		g, ok := s.againLocked(c.req.Key, request)
		if !ok {
			return nil
		}
		g.Waited = now.Sub(c.began)
		grants = append(grants, g)
	}
	for _, g := range grants {
		s.held[g.Key].tellAgain(g.Reentry)
	}
	s.m.figures.Cached(cachedRepeat)
	return grants
}

// has is the lock of which a request with this id has made an entry, or nil.
func (s *Session) has(key string, request uuid.UUID) *heldLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[key]; h != nil && !h.part && h.entryOf(request) != 0 {
		return h
	}
	return nil
}

// grantOf is a lock of the session as its holder sees it now. It reports false when
// the session does not hold it any more, or it is past its time.
func (s *Session) grantOf(h *heldLock) (Grant, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grantLocked(h)
	return g, s.held[h.key] == h && g.ExpiresIn > 0
}

func (s *Session) grantLocked(h *heldLock) Grant {
	return Grant{
		Key: h.key, Token: h.token, Session: s.name, Bind: BindSession, ExpiresIn: h.remaining(s.m.clk),
		AcquiredAt: h.acquired(), Reentry: h.entries, Stopping: h.stopping,
	}
}

var errNotHeld = errors.New("the session does not hold the lock any more")

// exit takes one entry off h, and h out of the session with the last: then the
// caller sends r. It returns how many are left. Errors: errNotHeld; and when r names
// the number of entries, and it is another, [ReentryError].
func (s *Session) exit(h *heldLock, r *release) (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.request != uuid.Nil {
		r.entry = h.entryOf(r.request)
	}
	switch n := r.reentry; {
	case s.held[h.key] != h, r.request != uuid.Nil && r.entry == 0, r.entry > h.entries:
		return 0, errNotHeld
	case n != 0 && n != h.entries:
		return 0, &ReentryError{Key: h.key, Given: n, Have: h.entries}
	}
	if e := h.entered[r.entry]; r.untold && e.again > 0 { // a repeat was told of it
		e.again--
		h.change().set(r.entry, e)
		return h.entries, nil
	}
	if r.entry != 0 && r.entry < h.entries {
		h.change().set(r.entry, entry{over: true})
		return h.entries, nil
	}
	delete(h.entered, h.entries)
	for left = h.entries - 1; left > 0; left-- {
		if !h.entered[left].over {
			h.change().entries = left
			return left, nil
		}
		delete(h.entered, left)
	}
	r.atOnce = r.untold && !h.reentered // who entered again was told that it is held
	s.takeLocked(h, ending{release: r})
	return 0, nil
}

// entrance is a waiting call that enters, and leaves the line, when its owner gets
// the lock by another call of the session.
type entrance struct {
	req  *Request
	open chan struct{} // has one token when it should try
}

// opens is ready to receive from when the call should try to enter.
func (e *entrance) opens() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.open
}

// openLocked lets those try who may enter h. s.mu is held.
func (s *Session) openLocked(h *heldLock) {
	for e := range s.entrances[h.key] {
		if h.admits(e.req) {
			select {
			case e.open <- struct{}{}:
			default:
			}
		}
	}
}

// expectEntry makes a call that waits hear when it may enter, until the returned
// function is called. What it may enter now it finds by itself, after this.
func (c *call) expectEntry() (done func()) {
	if !c.req.Reentrant || c.req.Wait == 0 {
		return func() {}
	}
	s, key := c.s, c.req.Key
	c.entry = &entrance{req: c.req, open: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entrances == nil {
		s.entrances = make(map[string]map[*entrance]struct{})
	}
	if s.entrances[key] == nil {
		s.entrances[key] = make(map[*entrance]struct{})
	}
	s.entrances[key][c.entry] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.entrances[key], c.entry)
		if len(s.entrances[key]) == 0 {
			delete(s.entrances, key)
		}
	}
}

// enter enters the lock that the call's owner has got since it asked.
func (c *call) enter() (Grant, bool) {
	if !c.req.Reentrant {
		return Grant{}, false
	}
	waited := c.m.clk.Now().Sub(c.began) // before what is left of the lock is reckoned
	g, ok := c.s.enter(c.req)
	g.Waited = waited
	return g, ok
}

// enterInstead enters when all that a call was told is that the key is held: by its
// owner, perhaps, who got it in this moment.
func (c *call) enterInstead(err error) (Grant, bool) {
	if _, held := errors.AsType[*HeldError](err); !held {
		return Grant{}, false
	}
	return c.enter()
}
