package attempt

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Acquire gets a lock for a session, or a BindTTL lock: see Acquire of package lease. [Call.Acquire] tells how.
func (aq *Acquirer) Acquire(ctx context.Context, s *holdings.Session, req *types.Request) (types.Grant, error) {
	if aq.IsDraining() {
		return types.Grant{}, types.ErrDraining
	}
	req.TTL = aq.TTLOf(s, req)
	if req.Bind == types.BindTTL {
		s = nil
	}
	c := aq.NewCall(ctx, s, req)
	if req.RequestID == uuid.Nil {
		return c.Acquire()
	}
	return aq.acquireInTurn(c)
}

// HeldInCache answers without the store that a key is held: by a session here, or by another holder a moment
// ago. If the request's owner has just got the lock and may enter it, the request is not denied. A share is
// denied only because of an exclusive holder.
func (aq *Acquirer) HeldInCache(s *holdings.Session, req *types.Request) (store.Lock, bool) {
	if req.Wait != 0 || req.NoCache {
		return store.Lock{}, false
	}
	if h := aq.holdings.Get(req.Key); h != nil && h.Valid(clock.Read(aq.clk)) {
		if h.Of(s) && h.Admits(req) || req.Shared && h.IsDowngraded() {
			return store.Lock{}, false
		}
		aq.obs.Cached(observe.CachedHeld)
		return aq.StateOf(h), true
	}
	if req.Shared {
		return store.Lock{}, false
	}
	lock, ok := aq.heldCache.Get(req.Key)
	if !ok || s.Expects(&lock, req) {
		return store.Lock{}, false
	}
	aq.obs.Cached(observe.CachedDenied)
	return lock, true
}

// StateOf is a lock of this sidecar as other callers see it, with the calls of this sidecar that wait for it.
func (aq *Acquirer) StateOf(h *holdings.Lock) store.Lock {
	lock := h.State()
	lock.QueueLength = aq.Queue.Length(h.Key)
	return lock
}

// ResultOf is the result of an acquire for metrics and spans.
func ResultOf(g *types.Grant, err error) string {
	switch {
	case err != nil:
		return types.CodeOf(err)
	case g.Reentry > 1:
		return observe.Reentered
	default:
		return observe.Granted
	}
}

// IsDraining reports whether acquires are refused.
func (aq *Acquirer) IsDraining() bool {
	select {
	case <-aq.draining:
		return true
	default:
		return false
	}
}

// TTLOf is the TTL that a request asks for, or the default.
func (aq *Acquirer) TTLOf(s *holdings.Session, req *types.Request) time.Duration {
	switch {
	case req.TTL != 0:
		return req.TTL
	case s != nil && req.Bind == types.BindSession:
		return s.TTL()
	default:
		return aq.cfg.TTL
	}
}

// AddWaiter counts a waiting call. It returns a [LimitError] if there are too many.
func (aq *Acquirer) AddWaiter() error {
	if n := aq.waiters.Add(1); n > int64(aq.cfg.MaxWaiters) {
		aq.waiters.Add(-1)
		return waiterLimit(aq.cfg.MaxWaiters)
	}
	return nil
}

// WaiterLeft ends the counting.
func (aq *Acquirer) WaiterLeft() { aq.waiters.Add(-1) }

func waiterLimit(limit int) error {
	return &types.LimitError{What: "waiting calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
}
