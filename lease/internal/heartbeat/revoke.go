package heartbeat

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/lanes"
)

// revoke declares an own lease dead in the background. If the store does not answer for long, the lease
// expires, and is reaped by the next asker of one of its keys.
func (ls *Leases) revoke(l *Lease) {
	ls.set.mustRevoke(l)
	confirmed := false
	ls.cfg.Background.Persist(func(ctx context.Context) bool {
		_, err := lanes.Submit(ctx, ls.cfg.Lanes.Revocations, l.id)
		confirmed = err == nil
		return confirmed
	}, ls.cfg.StoreTimeout, l.ttl+time.Minute, func() {
		if !confirmed && ls.ctx.Err() != nil {
			return // RevokeAll tries once more
		}
		if !confirmed {
			ls.leftUnrevoked.Add(1)
		}
		ls.set.revoked(l)
	})
}

// RevokeAll tries once to declare all leases dead, including those whose revocation was interrupted by the
// end of the context.
func (ls *Leases) RevokeAll(ctx context.Context) {
	for _, l := range ls.set.all() {
		l.lost.Store(true)
		ls.set.remove(l) // so that a late call does not find it again
		if l.life.Load() != nil {
			ls.set.mustRevoke(l)
		}
	}
	unrevoked := ls.set.unrevoked()
	if len(unrevoked) == 0 {
		return
	}
	if err := ls.cfg.Store.Revoke(ctx, idsOf(unrevoked)); err != nil {
		ls.cfg.Log.Warn("leases not revoked, so their locks become free when the leases expire", "leases", len(unrevoked), "error", err)
		return
	}
	ls.set.revoked(unrevoked...)
}

// LeftNothing reports, after RevokeAll, whether the store has confirmed the revocation of all leases of
// this sidecar and of its predecessors.
func (ls *Leases) LeftNothing() bool {
	return ls.leftUnrevoked.Load() == 0 && len(ls.set.unrevoked()) == 0
}
