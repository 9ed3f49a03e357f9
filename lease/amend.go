package lease

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Amend checks that a lock is still held under its token. If requested, it changes the lock's data and
// (BindTTL) its remaining time, or makes it a share. A mere check of a session's lock does not ask the
// store, unless it is unknown whether the lock became a share. Errors: [InvalidError] and those of [Manager.Release].
func (m *Manager) Amend(ctx context.Context, s *holdings.Session, req types.AmendRequest) (types.Grant, error) {
	g, err := m.amend(ctx, s, &req)
	if err != nil {
		m.obs.Refused(ctx, observe.Refusal{Operation: "amend", Key: req.Key, Traceparent: req.Traceparent, Code: types.CodeOf(err), Err: err})
	}
	return g, err
}

func (m *Manager) amend(ctx context.Context, s *holdings.Session, req *types.AmendRequest) (types.Grant, error) {
	c := claimant{"amend", s, req.Key, req.Token, req.Traceparent}
	h, err := m.claimed(c)
	if err != nil {
		return types.Grant{}, err
	}
	if h == nil {
		limited, cancel := types.Within(ctx, "amend", m.cfg.StoreTimeout)
		defer cancel()
		return m.amendForeign(limited, c, req)
	}
	if req.TTL > 0 {
		return types.Grant{}, types.Invalidf("field ttl_ms", "lock %q belongs to a session: ttl_ms can only be set for bind:ttl locks", req.Key)
	}
	changes := req.SetData
	if (req.Share || h.IsDowngraded()) && !h.IsShare() { // any call finds out what became of an earlier downgrade
		changes = true
		err = m.downgrade(ctx, s, h, req)
	} else if req.SetData {
		err = m.setData(ctx, h, req.Data)
	}
	if errors.Is(err, holdings.ErrNotHeld) {
		return types.Grant{}, m.notHeldAnyMore(c)
	}
	if err != nil {
		return types.Grant{}, err
	}
	g, held := s.GrantOf(h)
	if !held { // its time ended since the claim was checked
		return types.Grant{}, m.notHeldAnyMore(c)
	}
	if !changes {
		m.obs.Cached(observe.CachedCheck)
	}
	return g, nil
}

// downgrade makes a session's exclusive lock a share. If the outcome is unknown, a repeat finds the outcome.
func (m *Manager) downgrade(ctx context.Context, s *holdings.Session, h *holdings.Lock, req *types.AmendRequest) error {
	if err := s.Downgrade(h); err != nil {
		return err
	}
	adoption, held := h.Adoption()
	if req.SetData {
		adoption, held = h.Patch(req.Data)
	}
	if !held {
		return holdings.ErrNotHeld
	}
	change := lanes.Amendment{Adoption: adoption, Share: true}
	ctx, cancel := types.Within(ctx, "amend", m.cfg.StoreTimeout)
	defer cancel()
	v, err := lanes.SubmitAnd(ctx, m.lanes.Amends, change, func(v store.Amended) {
		switch v.Status {
		case store.Holds:
			if req.SetData {
				h.SetData(req.Data)
			}
			h.BecomeShare(v.Lock.Limit, slotOf(&v.Lock))
			m.heldCache.Drop(h.Key)
		case store.ClaimRowLocked:
			h.NotDowngraded()
		default:
			h.Lose(types.LostStore) // the store decides
		}
	})
	err = types.ClaimError("amend", v.Status, err)
	if errors.Is(err, types.ErrRowLocked) && req.SetData && len(change.Served) > 0 {
		return &store.Error{Op: "amend", Err: types.ErrRowLocked, Unknown: true} // the row may have been locked after the adoption, with its data
	}
	return err
}

// slotOf returns the slot of a share in the answer to an amend.
func slotOf(lock *store.Lock) int {
	if len(lock.Holders) == 0 {
		return 0
	}
	return lock.Holders[0].Slot
}

func (m *Manager) setData(ctx context.Context, h *holdings.Lock, data []byte) error {
	patch, held := h.Patch(data)
	if !held {
		return holdings.ErrNotHeld
	}
	change := lanes.Amendment{Adoption: patch}
	ctx, cancel := types.Within(ctx, "amend", m.cfg.StoreTimeout)
	defer cancel()
	// In the lane, so that the last change in the store is also the last one here.
	v, err := lanes.SubmitAnd(ctx, m.lanes.Amends, change, func(v store.Amended) {
		switch v.Status {
		case store.Holds:
			h.SetData(data)
		case store.ClaimRowLocked: // the store changed nothing
		default:
			h.Lose(types.LostStore) // the store decides
		}
	})
	return types.ClaimError("amend", v.Status, err)
}

// notHeldAnyMore returns the reason why a lock that was held a moment ago no longer is.
func (m *Manager) notHeldAnyMore(c claimant) error {
	now, err := m.claimed(c)
	if err == nil && now == nil {
		err = m.refused(c, types.ReasonUnknownToken)
	}
	return err
}

// amendForeign amends a bind:ttl lock. For any other lock, the store answers with the reason of the refusal.
func (m *Manager) amendForeign(ctx context.Context, c claimant, req *types.AmendRequest) (types.Grant, error) {
	sent := m.cfg.Clock.Now()
	change := lanes.Amend(store.Change{Key: req.Key, Token: req.Token, TTL: req.TTL, SetData: req.SetData, Data: req.Data})
	change.Share = req.Share
	v, err := lanes.Submit(ctx, m.lanes.Amends, change)
	if err := types.ClaimError("amend", v.Status, err); err != nil {
		return types.Grant{}, err
	}
	m.heldCache.Drop(req.Key)
	if v.Status != store.Holds {
		return types.Grant{}, m.refusedBy(v.Status, c)
	}
	m.acquirer.GrantLasts(m.cfg.Clock.Now(), req.TTL)
	// The store counts from a later moment than the question. Counting from the question is safe.
	rest := heartbeat.Reliable(v.Lock.Holder.ExpiresIn)
	left := rest - m.cfg.Clock.Now().Sub(sent)
	switch {
	case rest <= 0:
		return types.Grant{}, m.refusedBy(store.Expired, c)
	case left <= 0: // The answer took longer than the time that it names. The repetition ends with the lock: then the store refuses.
		return m.amendForeign(ctx, c, &types.AmendRequest{Key: req.Key, Token: req.Token})
	}
	return types.Grant{
		Key: req.Key, Token: req.Token, Bind: types.BindTTL, Reentry: 1,
		ExpiresIn: left, AcquiredAt: v.Lock.Holder.AcquiredAt, Stopping: v.Lock.Stopping,
		Shared: v.Lock.Shared, Limit: v.Lock.Limit, Slot: slotOf(&v.Lock),
	}, nil
}
