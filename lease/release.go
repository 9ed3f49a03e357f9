package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// release is a release under way. A lock that its session gave up is free as
// soon as the store confirms it; until then the release is repeated, so that a
// failed one heals by itself, for as long as the lock's lease lives.
type release struct {
	heldFor time.Duration
	// req says how the lock is entered, and what those who wait are told.
	req ReleaseRequest
	// untold: nobody was told of the grant. atOnce: a MinHold is not kept.
	// ofSession: the session has ended.
	untold, atOnce, ofSession bool
	// entry is the number of the entry that is untold.
	entry int

	mu sync.Mutex
	// err is the outcome of the last try.
	err   error
	tried chan struct{} // closed after the first try
	first sync.Once
	// over: no more tries follow. settled is closed then; it is nil until somebody
	// waits for that.
	over    bool
	settled chan struct{}
}

// Release releases the lock that is held under this token, or takes one entry off
// it if its owner has entered it more than once. s is the session that claims it; it
// may be nil, which is enough for BindTTL locks. Errors: [NotHolderError],
// [ReentryError], [LostError], [ErrAbandoned] when ctx ends while it waits, [ErrDraining] after Stop,
// and those of the store: a session's release then goes on in the background.
func (m *Manager) Release(ctx context.Context, s *Session, req ReleaseRequest) (Released, error) {
	out, err := m.release(ctx, s, &req)
	m.released(ctx, &req, out, err)
	return out, err
}

func (m *Manager) release(ctx context.Context, s *Session, req *ReleaseRequest) (Released, error) {
	c := claimant{"release", s, req.Key, req.Token, req.Traceparent}
	if e, ok := m.ended.get(c.ref()); ok && e.release.failure() != nil && req.Reentry <= 1 {
		return m.releaseAgain(ctx, req.Key, e.release)
	}
	h, err := m.claimed(c)
	if err != nil {
		return Released{}, err
	}
	if h == nil {
		return m.releaseForeign(ctx, c, req)
	}
	m.linkAcquire(ctx, h.traceparent)
	r := m.newRelease(h, req)
	entries, err := s.exit(h, r)
	switch {
	case errors.Is(err, errNotHeld):
		// It was lost, released or ended in this moment: say which.
		return m.release(ctx, s, req)
	case err != nil:
		if wrong, ok := errors.AsType[*ReentryError](err); ok && wrong.Given > wrong.Have {
			_ = m.refused(c, ReasonReleased) // that entry was released: for the log
		}
		return Released{}, err
	case entries > 0:
		return Released{Key: req.Key, Reentry: entries, HeldFor: r.heldFor}, nil
	}
	if !m.inline {
		_ = ctx.Done() // as in start: it waits from here on
	}
	m.sendBy(m.along(context.Background(), ctx), m.releases.Do, h, r, nil)
	return r.wait(ctx, req.Key, r.tried)
}

// claimant is who says to hold a lock, and what for.
type claimant struct {
	op    string
	s     *Session // nil: none
	key   string
	token int64
	// traceparent is that of the call, for the log.
	traceparent string
}

func (c claimant) ref() grantRef { return grantRef{c.key, c.token} }

// claimed finds the lock that a claim means. It returns nil without an error
// when only the store can tell. What is known here is decided here: [LostError],
// [NotHolderError].
func (m *Manager) claimed(c claimant) (*heldLock, error) {
	if c.s != nil {
		if h := c.s.find(c.key, c.token); h != nil {
			if h.valid(m.clk) {
				return h, nil
			}
			m.expire(h)
		}
		if reason, ok := c.s.lossOf(c.ref()); ok {
			return nil, m.lostBefore(c, reason)
		}
	}
	if e, ok := m.ended.get(c.ref()); ok {
		if e.lost != "" {
			return nil, m.lostBefore(c, e.lost)
		}
		m.figures.Cached(cachedEnd)
		return nil, m.refused(c, ReasonReleased)
	}
	if h := m.held.get(c.key); h != nil && h.token == c.token && h.s != c.s {
		return nil, m.refused(c, ReasonOtherSession)
	}
	return nil, nil //nolint:nilnil // only the store can tell
}

// refused makes the error of a refused claim and logs it: somebody believes to
// hold what it does not.
func (m *Manager) refused(c claimant, reason NotHolderReason) error {
	m.logRefused(c, string(reason))
	return &NotHolderError{Key: c.key, Token: c.token, Reason: reason}
}

// lostBefore makes the error of a claim on a lock that is known here to be lost.
func (m *Manager) lostBefore(c claimant, reason LostReason) error {
	m.figures.Cached(cachedEnd)
	return m.lost(c, reason)
}

func (m *Manager) lost(c claimant, reason LostReason) error {
	m.logRefused(c, string(reason))
	return &LostError{Lost{Key: c.key, Token: c.token, Reason: reason}}
}

func (m *Manager) logRefused(c claimant, reason string) {
	session := ""
	if c.s != nil {
		session = c.s.name
	}
	m.logOf(c.traceparent).Warn("claim refused", "operation", c.op, "key", c.key, "token", c.token, "session", session,
		"reason", reason)
}

// releaseForeign releases a lock that no session here holds: a bind:ttl lock, or
// one of which only the store knows that it is not the caller's.
func (m *Manager) releaseForeign(ctx context.Context, c claimant, req *ReleaseRequest) (Released, error) {
	if req.Reentry > 1 { // such locks are entered once: the claim may be wrong before that
		if _, err := m.amendForeign(ctx, c, &AmendRequest{Key: c.key, Token: c.token}); err != nil {
			return Released{}, err
		}
		return Released{}, m.refused(c, ReasonReleased)
	}
	v, err := submit(ctx, m.releases, store.Claim{
		Key: c.key, Token: c.token, Outcome: req.Outcome, Result: req.Result, Traceparent: req.Traceparent,
	})
	if err := judged("release", v, err); err != nil {
		return Released{}, err
	}
	m.denials.drop(c.key)
	if v.Standing != store.Holds {
		return Released{}, m.refusedBy(v.Standing, c)
	}
	m.linkAcquire(ctx, v.Lock.Holder.Traceparent)
	m.heldUntilNow(&v.Lock, c.token)
	return Released{Key: c.key, HeldFor: v.Lock.Holder.HeldFor}, nil
}

// refusedBy translates the store's verdict on a claim.
func (m *Manager) refusedBy(standing store.Standing, c claimant) error {
	switch standing {
	case store.OtherSession:
		return m.refused(c, ReasonOtherSession)
	case store.Released:
		return m.refused(c, ReasonReleased)
	case store.Expired:
		return m.lost(c, LostExpired)
	default:
		return m.refused(c, ReasonUnknownToken)
	}
}

// newEnd makes the release of h that nobody asked for: its acquire stands for it.
func (m *Manager) newEnd(h *heldLock) *release {
	return m.newRelease(h, &ReleaseRequest{Traceparent: h.traceparent})
}

// newRelease makes the release of h.
func (m *Manager) newRelease(h *heldLock, req *ReleaseRequest) *release {
	return &release{
		heldFor: h.heldFor(), req: *req, tried: make(chan struct{}),
	}
}

// send sends the release of h, which no session holds any more. done is called
// when it is settled; it may be nil. ctx has the span of who releases it.
func (m *Manager) send(ctx context.Context, h *heldLock, r *release, done func()) {
	m.sendBy(ctx, m.releases.Submit, h, r, done)
}

// submitting is one of the ways into the lane of releases.
type submitting = func(context.Context, store.Claim, func(store.Verdict, error)) error

func (m *Manager) sendBy(ctx context.Context, first submitting, h *heldLock, r *release, done func()) {
	settled := func() {
		r.settle()
		h.lease.unpin()
		if done != nil {
			done()
		}
	}
	matters := func() bool { return h.lease.alive(m.clk) }
	c := h.claim()
	c.Outcome, c.Result, c.AtOnce = r.req.Outcome, r.req.Result, c.AtOnce || r.atOnce
	c.Traceparent = r.req.Traceparent
	if c.AtOnce && h.grant != uuid.Nil { // else undoing it could free what a repeat was told
		settled = m.afterwards(ctx, store.Attempt{Key: h.key, Grant: h.grant}, h.lease, h.minHold, settled)
	}
	m.freeBy(ctx, first, c, matters, r.answer, settled)
}

// free sends a release again and again until the store confirms it or it does
// not matter any more, because the lock's lease is dead. tried hears the outcome
// of each try; then, once, settled is called. Only the first try stands in the trace:
// in an outage those of all locks would push everything else out of the exporter's queue.
func (m *Manager) free(ctx context.Context, c store.Claim, matters func() bool, tried func(error), settled func()) {
	m.freeBy(ctx, m.releases.Submit, c, matters, tried, settled)
}

// freeBy is free, the first time by this way into the lane.
func (m *Manager) freeBy(
	ctx context.Context, first submitting, c store.Claim, matters func() bool, tried func(error), settled func(),
) {
	again := func() { m.free(context.Background(), c, matters, tried, settled) }
	answer := func(v store.Verdict, err error) {
		err = judged("release", v, err)
		if err != nil && matters() {
			tried(err)
			if !m.retries.after(jittered(renewRetry), again) {
				settled()
			}
			return
		}
		if err == nil && v.Standing != store.Holds {
			m.log.Debug("what was released was not held any more", "key", c.Key, "token", c.Token)
		}
		m.denials.drop(c.Key)
		tried(nil)
		settled()
	}
	// Releases are not limited: what is released was held, and that is limited.
	if err := first(ctx, c, answer); err != nil {
		// The manager has stopped; its leases are buried with all that they hold.
		tried(err)
		settled()
	}
}

// undo frees what an attempt of unknown outcome may have got. The question may
// still lie in somebody's buffer, and be carried out after it was undone: so it is
// undone at once, for those who wait for the key, and once more when the server
// has long given up on what reached it.
func (m *Manager) undo(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	m.undoOnce(ctx, a, matters, func() {
		again := func() { m.undoOnce(ctx, a, matters, settled) }
		if m.inline || !matters() || !m.retries.after(2*m.cfg.StoreTimeout, again) {
			settled()
		}
	})
}

// undoOnce tries again and again until the store confirms it or it does not
// matter any more. Then, once, settled is called.
func (m *Manager) undoOnce(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	again := func() { m.undoOnce(context.Background(), a, matters, settled) }
	answer := func(o store.Outcome, err error) {
		m.denials.drop(a.Key)
		undone := err == nil && o != store.Stuck
		if undone || !matters() || !m.retries.after(jittered(renewRetry), again) {
			settled()
		}
	}
	if err := m.undos.Submit(ctx, a, answer); err != nil {
		settled() // as in free
	}
}

func (r *release) answer(err error) {
	r.mu.Lock()
	r.err = err
	r.mu.Unlock()
	r.first.Do(func() { close(r.tried) })
}

// settle notes that no more tries follow.
func (r *release) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.settled != nil {
		close(r.settled)
	}
}

// end is closed when no more tries follow.
func (r *release) end() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled == nil {
		r.settled = make(chan struct{})
		if r.over {
			close(r.settled)
		}
	}
	return r.settled
}

// failure is why the last try failed, nil when none did or the release is done.
func (r *release) failure() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// releaseAgain answers a repeated release while the first goes on in vain.
func (m *Manager) releaseAgain(ctx context.Context, key string, r *release) (Released, error) {
	limited, cancel := context.WithTimeout(ctx, m.cfg.StoreTimeout)
	defer cancel()
	released, err := r.wait(limited, key, r.end())
	if last := r.failure(); err != nil && ctx.Err() == nil && last != nil {
		return Released{}, last
	}
	return released, err
}

// wait returns the outcome when it is there.
func (r *release) wait(ctx context.Context, key string, there <-chan struct{}) (Released, error) {
	select {
	case <-there: // often at once; to say that one waits is not free
	default:
		select {
		case <-there:
		case <-ctx.Done():
			return Released{}, errors.Join(ErrAbandoned, context.Cause(ctx))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Released{Key: key, HeldFor: r.heldFor}, r.err
}

// Discard gives back a grant whose answer could not be delivered: nobody knows
// that it is held, or that its owner has entered it once more. It works in the
// background.
func (m *Manager) Discard(s *Session, g Grant) {
	if g.Bind == BindTTL {
		m.giveBack(g)
		return
	}
	if h := s.find(g.Key, g.Token); h != nil {
		r := m.newEnd(h)
		r.untold, r.entry = true, g.Reentry
		if entries, err := s.exit(h, r); err == nil && entries == 0 {
			m.send(h.traced(), h, r, nil)
		}
	}
}
