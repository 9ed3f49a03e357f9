package heartbeat

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// revoke declares an own lease dead in the background. If the store does not answer for long, the lease
// expires, and is reaped by the next asker of one of its keys.
func (ls *Leases) revoke(l *Lease) {
	ls.mustRevoke(l)
	ls.sendRevocation(l)
}

// sendRevocation revokes a lease that must be revoked, until the store has confirmed it. After RevokeAll it does nothing.
func (ls *Leases) sendRevocation(l *Lease) {
	confirmed := false
	ls.cfg.Background.Persist(func(ctx context.Context) bool {
		_, err := lanes.SubmitOwn(ctx, ls.cfg.Lanes.Revocations, "revoke", l.id)
		confirmed = err == nil
		return confirmed
	}, ls.cfg.StoreTimeout, l.ttl+time.Minute, func() {
		if !confirmed && ls.ctx.Err() != nil {
			return // RevokeAll tries once more
		}
		if !confirmed {
			ls.leftUnrevoked.Add(1)
		}
		ls.revoked(l)
	})
}

// RevokeAll tries once to declare all leases dead, including those whose revocation was interrupted by the
// end of the context.
func (ls *Leases) RevokeAll(ctx context.Context) {
	for _, l := range ls.All() {
		l.lose(types.LostShutdown)
		ls.remove(l) // so that a late call does not find it again
		if l.isOpen() {
			ls.mustRevoke(l)
		}
	}
	unrevoked := ls.unrevoked()
	if len(unrevoked) == 0 {
		return
	}
	if err := ls.cfg.Store.Revoke(ctx, idsOf(unrevoked)); err != nil {
		ls.cfg.Log.Warn("leases not revoked, so their locks become free when the leases expire", "leases", len(unrevoked), "error", err)
		return
	}
	ls.revoked(unrevoked...)
}

// LeftNothing reports, after RevokeAll, whether the store has confirmed the revocation of all leases of
// this sidecar and of its predecessors.
func (ls *Leases) LeftNothing() bool {
	return ls.leftUnrevoked.Load() == 0 && len(ls.unrevoked()) == 0
}

// errReaping: the leases of predecessors are not reaped yet.
var errReaping = errors.New("reaping the leases of the sidecar that ran here before")

// reapRounds is how often revoking the predecessors is tried with a store that answers. If a row stays
// locked for so long, the sidecar becomes ready without that, and the leases expire.
const reapRounds = 5

const forever = time.Duration(math.MaxInt64)

// Reap revokes the leases of instances that ran here before, so that others need not wait until these
// leases expire. The instances are listed in the order in which they ran. Reap works in the background
// until the leases' context ends. It calls done when the store has confirmed all. Until then, or until a
// few tries have failed, Ready returns an error.
func (ls *Leases) Reap(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	ls.reaping.Store(true)
	ls.leftUnrevoked.Add(1)
	left, rounds := slices.Clone(instances), 0
	slices.Reverse(left) // the latest instance's leases are the most likely to live
	ls.cfg.Background.Persist(func(ctx context.Context) bool {
		left = slices.DeleteFunc(left, func(instance string) bool { return ls.reapInstance(ctx, instance) })
		if rounds++; ls.cfg.Store.Ready() != nil {
			rounds = 0
		}
		if len(left) == 0 {
			done()
			ls.leftUnrevoked.Add(-1)
		}
		if len(left) == 0 || rounds == reapRounds {
			ls.reaping.Store(false)
		}
		return len(left) == 0
	}, ls.cfg.StoreTimeout, forever, func() {})
}

func (ls *Leases) reapInstance(ctx context.Context, instance string) bool {
	err := ls.cfg.Store.ReapInstance(ctx, instance)
	if err != nil {
		ls.cfg.Log.Warn("could not reap the leases of an earlier sidecar of this pod, trying again", "instance", instance, "error", err)
	}
	return err == nil
}

// Ready returns an error while predecessors are being reaped.
func (ls *Leases) Ready() error {
	if ls.reaping.Load() {
		return errReaping
	}
	return nil
}
