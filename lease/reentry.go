package lease

import "errors"

// A session's lock may be entered again by the owner that holds it: the store is
// not asked and does not know. The lock stays as its first grant made it, but for
// the count of its entries; each release takes one off, the last frees it. An entry
// keeps its number, for a release may name it: one of which the answer was not
// delivered ends with the one above it, or at once if it is the last.

// admits reports whether h may be entered again by whoever makes this request in
// the session of h.
func (h *heldLock) admits(req *Request) bool {
	return req.Reentrant && req.Owner != "" && h.owner == req.Owner
}

// enter enters the lock that the request's owner holds in this session. It reports
// false when there is none. What the asking call's own bid has just won is not
// entered: the call is about to hear of it. p is that call's place.
func (s *Session) enter(p *place, req *Request) (Grant, bool) {
	if !req.Reentrant {
		return Grant{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[req.Key]
	if s.ended || h == nil || h.part || h == p.kept || !h.admits(req) || !h.valid(s.m.clk) {
		return Grant{}, false
	}
	g := s.grantLocked(h)
	if g.ExpiresIn <= 0 { // time has passed since it was valid
		return Grant{}, false
	}
	c := h.change()
	c.entries++
	c.reentered = true
	g.Reentry = c.entries
	return g, true
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
	switch n := r.reentry; {
	case s.held[h.key] != h:
		return 0, errNotHeld
	case n != 0 && n != h.entries:
		return 0, &ReentryError{Key: h.key, Given: n, Have: h.entries}
	}
	if r.untold && r.entry < h.entries {
		c := h.change()
		if c.untold == nil {
			c.untold = make(map[int]struct{})
		}
		c.untold[r.entry] = struct{}{}
		return h.entries, nil
	}
	for left = h.entries - 1; left > 0; left-- {
		if _, gone := h.untold[left]; !gone {
			h.change().entries = left
			return left, nil
		}
		delete(h.untold, left)
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
	g, ok := c.s.enter(&c.place, c.req)
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
