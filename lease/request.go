package lease

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// releaseRequest releases what calls with a request id have got: in the session, or otherwise with BindTTL.
// Calls that still run here end first, with [ErrWithdrawn].
func (m *Manager) releaseRequest(ctx context.Context, s *holdings.Session, req *types.ReleaseRequest) (types.Released, error) {
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
	// The turn lasts until the store has answered, because a late cancel would end the next call.
	ans, err := lanes.Submit(context.WithoutCancel(ctx), m.lanes.Cancels, a) // this also finds a grant of another sidecar
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
		m.acquirer.Free(context.Background(), store.Claim{Key: req.Key, Token: ans.Token, Outcome: req.Outcome, Result: req.Result},
			m.acquirer.Within(ans.ExpiresIn), leave)
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
		m.expire(h)
		h = nil
	}
	if h == nil {
		defer leave()
		return m.nothingOnceFreed(ctx, s, req.Key)
	}
	if err := checkOutcome(h, req); err != nil {
		defer leave()
		return types.Released{}, err
	}
	m.obs.LinkAcquire(ctx, h.Traceparent)
	r := h.NewRelease(req, t.Now, leave) // a repeat waits until the store has confirmed it
	switch entries, err := s.Exit(h, r); {
	case err != nil: // it has just been lost or released
		defer leave()
		return m.nothingOnceFreed(ctx, s, req.Key)
	case entries > 0:
		leave()
		return types.Released{Key: req.Key, Reentry: entries, HeldFor: r.HeldFor}, nil
	}
	return r.SendAndWait(ctx)
}

// nothingOnceFreed answers that the id has no lock, after a running release of the key, which may be the id's.
func (m *Manager) nothingOnceFreed(ctx context.Context, s *holdings.Session, key string) (types.Released, error) {
	for _, r := range s.FreeingOf(key) {
		if _, err := r.Again(ctx, m.cfg.StoreTimeout); err != nil {
			return types.Released{}, err
		}
	}
	return types.Released{Key: key, Nothing: true}, nil
}
