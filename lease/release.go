package lease

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Release releases the lock that is held under this token. If its owner has entered the lock more than
// once, Release ends one entry: the newest, or with a RequestID the one that this request made. s is the
// session that claims it; for BindTTL locks it may be nil. With a RequestID alone, Release releases what
// calls with that id have got. It also ends calls with that id that still run in the session or, with
// BindTTL, at this sidecar. It may be repeated: if the id has no lock, this is not an error. Errors:
// [NotHolderError], [ReentryError], [LostError], [ErrCallerLeft] when ctx ends while it waits,
// [ErrDraining] after Stop, and those of the store: a session's release then continues in the background.
func (m *Manager) Release(ctx context.Context, s *holdings.Session, req types.ReleaseRequest) (types.Released, error) {
	release := m.release
	if req.Token == 0 {
		release = m.releaseRequest
	}
	out, err := release(ctx, s, &req)
	m.released(ctx, &req, out, err)
	return out, err
}

// release tells how a lock is released by its token.
func (m *Manager) release(ctx context.Context, s *holdings.Session, req *types.ReleaseRequest) (types.Released, error) {
	c, t := claimant{"release", s, req.Key, req.Token, req.Traceparent}, clock.Read(m.cfg.Clock)
	h := m.ownClaim(c, t)
	// If the session does not hold the lock, the caller may have released it before: it waits for that release. (A higher number of
	// entries means an earlier release than that.) Or the lock was lost. Else it is a bind:ttl lock, or a wrong claim: only the store
	// can tell.
	if h == nil {
		if e, ok := m.holdings.Ended(c.key, c.token); ok && e.RepeatWaits() && req.Reentry <= 1 {
			return e.Release.AwaitLast(ctx, m.cfg.StoreTimeout)
		}
		if err := m.claimedElsewhere(c); err != nil {
			m.acquirer.ReleaseLost(s, req)
			return types.Released{}, err
		}
		limited, cancel := types.Within(ctx, "release", m.cfg.StoreTimeout)
		defer cancel()
		return m.releaseForeign(limited, c, req)
	}
	if err := checkOutcome(h, req); err != nil {
		return types.Released{}, err
	}
	m.obs.LinkAcquire(ctx, h.Traceparent)
	// One entry ends. With the last one the lock leaves the session: from now on the app does not hold it, whatever the store says.
	r := h.NewRelease(req, t.Now, nil)
	entries, err := s.ReleaseEntry(h, r)
	switch {
	case errors.Is(err, holdings.ErrOver):
		return types.Released{Key: req.Key, Reentry: entries, HeldFor: r.HeldFor}, nil
	case errors.Is(err, holdings.ErrNotHeld):
		// The lock has just been lost, released or ended: release returns the right error. It finds no lock now, so this happens once.
		return m.release(ctx, s, req)
	case err != nil:
		if wrong, ok := errors.AsType[*types.ReentryError](err); ok && wrong.Given > wrong.Have {
			_ = m.refused(c, types.ReasonReleased) // for the log: that entry was released before
		}
		return types.Released{}, err
	case entries > 0:
		return types.Released{Key: req.Key, Reentry: entries, HeldFor: r.HeldFor}, nil
	}
	// The next waiting call gets the lock, or the store frees it. If the store does not answer, the release goes on in the background,
	// and a repeated call waits for it.
	return m.acquirer.ReleaseAndWait(ctx, r)
}

// checkOutcome refuses the outcome of a share: outcomes are for exclusive locks.
func checkOutcome(h *holdings.Lock, req *types.ReleaseRequest) error {
	if req.Outcome != store.NoOutcome && h.IsShare() {
		return outcomeOfShare(h.Key)
	}
	return nil
}

func outcomeOfShare(key string) error {
	return types.Invalidf("outcome", "lock %q is shared: its release has no outcome", key)
}

type claimant struct {
	op    string
	s     *holdings.Session // nil: a claim without a session
	key   string
	token int64
	// traceparent is for the log.
	traceparent string
}

// claimed finds the lock that a claim means. If lock and error are both nil, only the store can tell.
// Errors: [LostError], [NotHolderError].
func (m *Manager) claimed(c claimant) (*holdings.Lock, error) {
	if h := m.ownClaim(c, clock.Read(m.cfg.Clock)); h != nil {
		return h, nil
	}
	return nil, m.claimedElsewhere(c) // nil: only the store can tell
}

// ownClaim returns the lock that a claim means if the claimant's session holds it now, otherwise nil.
func (m *Manager) ownClaim(c claimant, t clock.Tick) *holdings.Lock {
	if c.s == nil {
		return nil
	}
	h := c.s.Find(c.key, c.token)
	if h != nil && !h.Valid(t) {
		m.loseOverdue(h)
		return nil
	}
	return h
}

// loseOverdue loses a lock that was found past its time.
func (m *Manager) loseOverdue(h *holdings.Lock) {
	l := h.Lease()
	if l.Alive(clock.Read(m.cfg.Clock)) {
		h.LoseAtMaxHold()
		return
	}
	m.leases.LoseOverdue(l)
	// Another call may be losing the lease and may not have reached h yet.
	h.LoseUnder(l, l.LossReason())
}

// claimedElsewhere decides a claim on a lock that the session does not hold, as far as this sidecar knows.
func (m *Manager) claimedElsewhere(c claimant) error {
	if c.s != nil {
		if reason, ok := c.s.LossOf(c.key, c.token); ok {
			return m.lostBefore(c, reason)
		}
	}
	if e, ok := m.holdings.Ended(c.key, c.token); ok {
		if e.Lost != "" {
			return m.lostBefore(c, e.Lost)
		}
		m.obs.Cached(observe.CachedEnd)
		return m.refused(c, types.ReasonReleased)
	}
	if h := m.holdings.Find(c.key, c.token); h != nil && !h.Of(c.s) {
		return m.refused(c, types.ReasonOtherSession)
	}
	return nil
}

// refused makes the error of a refused claim and logs it, because the caller wrongly believes that it holds a lock.
func (m *Manager) refused(c claimant, reason types.NotHolderReason) error {
	m.logRefused(c, string(reason))
	return &types.NotHolderError{Key: c.key, Token: c.token, Reason: reason}
}

// lostBefore answers a claim on a lost lock without the store.
func (m *Manager) lostBefore(c claimant, reason types.LostReason) error {
	m.obs.Cached(observe.CachedEnd)
	return m.lost(c, reason)
}

func (m *Manager) lost(c claimant, reason types.LostReason) error {
	m.logRefused(c, string(reason))
	return &types.LostError{Lost: types.Lost{Key: c.key, Token: c.token, Reason: reason}}
}

func (m *Manager) logRefused(c claimant, reason string) {
	claim := observe.Claim{Operation: c.op, Key: c.key, Token: c.token, Traceparent: c.traceparent}
	if c.s != nil {
		claim.Session = c.s.Name()
	}
	m.obs.ClaimRefused(claim, reason)
}

// releaseForeign releases a lock that is not held by a session here, or returns the store's reason for a refusal.
func (m *Manager) releaseForeign(ctx context.Context, c claimant, req *types.ReleaseRequest) (types.Released, error) {
	if req.Reentry > 1 { // such locks have one entry; a wrong claim must be answered first
		if _, err := m.amendForeign(ctx, c, &types.AmendRequest{Key: c.key, Token: c.token}); err != nil {
			return types.Released{}, err
		}
		return types.Released{}, m.refused(c, types.ReasonReleased)
	}
	v, err := lanes.Submit(ctx, m.lanes.Releases, store.Claim{
		Key: c.key, Token: c.token, Outcome: req.Outcome, Result: req.Result, Traceparent: req.Traceparent,
	})
	if err := types.ClaimError("release", v.Status, err); err != nil {
		return types.Released{}, err
	}
	if v.Status == store.IsShare {
		return types.Released{}, outcomeOfShare(c.key)
	}
	m.heldCache.Drop(c.key)
	if v.Status != store.Holds {
		return types.Released{}, m.refusedBy(v.Status, c)
	}
	m.obs.LinkAcquire(ctx, v.Traceparent)
	m.obs.HeldUntilNow(c.key, c.token, &v)
	return types.Released{Key: c.key, HeldFor: v.HeldFor}, nil
}

func (m *Manager) refusedBy(status store.ClaimStatus, c claimant) error {
	switch status {
	case store.OtherSession:
		return m.refused(c, types.ReasonOtherSession)
	case store.Released:
		return m.refused(c, types.ReasonReleased)
	case store.Expired:
		return m.lost(c, types.LostExpired)
	default:
		return m.refused(c, types.ReasonUnknownToken)
	}
}

// HandBack hands back, in the background, a grant or an entry whose answer could not be delivered.
func (m *Manager) HandBack(s *holdings.Session, g types.Grant) {
	m.acquirer.HandBack(s, g)
}

func (m *Manager) released(ctx context.Context, req *types.ReleaseRequest, out types.Released, err error) {
	switch {
	case err != nil:
		code := types.CodeOf(err)
		m.obs.Releases(req.Key, code)
		m.obs.Refused(ctx, observe.Refusal{Operation: "release", Key: req.Key, Traceparent: req.Traceparent, Code: code, Err: err})
	case out.Nothing:
	case out.Reentry > 0:
		m.obs.Releases(req.Key, observe.Reentered)
	default:
		m.obs.Releases(req.Key, observe.Released)
	}
}

// releaseRequest releases what calls with a request id have got: in the session, or otherwise with BindTTL.
// Calls that still run here end first, with [ErrWithdrawn].
func (m *Manager) releaseRequest(ctx context.Context, s *holdings.Session, req *types.ReleaseRequest) (types.Released, error) {
	ctx, cancel := types.Within(ctx, "release", m.cfg.StoreTimeout)
	defer cancel()
	if s != nil {
		if out, err := m.releaseRequestOf(ctx, s, req); err != nil || !out.Nothing {
			return out, err
		}
	}
	a := store.Attempt{Key: req.Key, ID: repeat.AttemptID(req.RequestID, req.Key), Undelivered: true}
	r, leave, err := m.acquirer.EndCalls(ctx, nil, a.ID)
	if err != nil {
		return types.Released{}, err
	}
	type outcome struct {
		out types.Released
		err error
	}
	done := make(chan outcome, 1)
	go func() { // it goes on if the call's time is over, or its caller has left
		out, err := m.releaseAttempt(context.WithoutCancel(ctx), s, req, a, r, leave)
		done <- outcome{out, err}
	}()
	select {
	case o := <-done:
		return o.out, o.err
	case <-ctx.Done():
		return types.Released{}, types.Left(ctx)
	}
}

// releaseAttempt releases what an attempt with a request id has got outside the session, and then calls leave. The turn
// lasts until the store has answered, because a late cancel would end the next call.
func (m *Manager) releaseAttempt(
	ctx context.Context, s *holdings.Session, req *types.ReleaseRequest, a store.Attempt, r *repeat.Request, leave func(),
) (types.Released, error) {
	ans, err := lanes.Submit(ctx, m.lanes.Cancels, a) // this also finds a grant of another sidecar
	if err == nil && ans.Outcome == store.RowLocked {
		err = types.RowLocked("release")
	}
	if err != nil {
		leave()
		return types.Released{}, err
	}
	nothing := types.Released{Key: req.Key, Nothing: true}
	if ans.Outcome != store.Granted {
		r.Forget()
		leave()
		return nothing, nil
	}
	out, err := m.releaseForeign(ctx, claimant{"release", s, req.Key, ans.Token, req.Traceparent}, req)
	ended := types.Is[*types.NotHolderError](err) || types.Is[*types.LostError](err) // it ended at this moment
	switch {
	case err == nil, ended:
		r.Forget()
		leave()
	case store.OutcomeUnknown(err), errors.Is(err, types.ErrCallerLeft):
		// The release may still take effect, so a repeat must not get the grant before the release is over.
		r.Forget()
		m.acquirer.ReleaseClaim(context.Background(), store.Claim{Key: req.Key, Token: ans.Token, Outcome: req.Outcome, Result: req.Result},
			m.acquirer.MayHave(nil, ans.ExpiresIn), leave)
	default:
		leave()
	}
	if ended {
		return nothing, nil
	}
	return out, err
}

func (m *Manager) releaseRequestOf(ctx context.Context, s *holdings.Session, req *types.ReleaseRequest) (types.Released, error) {
	_, leave, err := m.acquirer.EndCalls(ctx, s, repeat.AttemptID(req.RequestID, req.Key))
	if err != nil {
		return types.Released{}, err
	}
	h, t := s.Has(req.Key, req.RequestID), clock.Read(m.cfg.Clock)
	if h != nil && !h.Valid(t) {
		m.loseOverdue(h)
		h = nil
	}
	if h == nil {
		defer leave()
		m.acquirer.ReleaseLost(s, req)
		return m.nothingOnceFreed(ctx, s, req.Key)
	}
	if err := checkOutcome(h, req); err != nil {
		defer leave()
		return types.Released{}, err
	}
	m.obs.LinkAcquire(ctx, h.Traceparent)
	r := h.NewRelease(req, t.Now, leave) // a repeat waits until the store has confirmed it
	switch entries, err := s.ReleaseEntry(h, r); {
	case err != nil: // it has just been lost or released
		defer leave()
		m.acquirer.ReleaseLost(s, req)
		return m.nothingOnceFreed(ctx, s, req.Key)
	case entries > 0:
		leave()
		return types.Released{Key: req.Key, Reentry: entries, HeldFor: r.HeldFor}, nil
	}
	return m.acquirer.ReleaseAndWait(ctx, r)
}

// nothingOnceFreed answers that the id has no lock, after a running release of the key, which may be the id's.
func (m *Manager) nothingOnceFreed(ctx context.Context, s *holdings.Session, key string) (types.Released, error) {
	for _, r := range s.ReleasesOf(key) {
		if _, err := r.AwaitLast(ctx, m.cfg.StoreTimeout); err != nil && !types.Is[*types.LostError](err) {
			return types.Released{}, err
		}
	}
	return types.Released{Key: key, Nothing: true}, nil
}
