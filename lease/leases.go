package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// leaseUsers tells the users of a lease what becomes of it: see [heartbeat.Users].
type leaseUsers struct{ m *Manager }

// LeaseLost tells what ends with a lease, before it is revoked.
func (u leaseUsers) LeaseLost(l *heartbeat.Lease, reason types.LostReason) (locks, waits int) {
	// Sessions lose their locks. The app of an explicit session is told by its stream, the others by their next call: see
	// holdings/lost.go. Claims on the locks are refused from now on.
	under := u.m.holdings.On(l)
	for _, h := range under {
		h.LoseUnder(l, reason)
	}
	// Keys that are kept have no session. The store may still have them, if the lease was lost early.
	u.m.acquirer.GiveUpAll(l)
	// Watches begin again under a fresh lease. They look at their keys then, so no event is missed.
	u.m.watches.LeaseEnded()
	// Waits begin again under a fresh lease, at the end of their queues.
	return len(under), u.m.acquirer.LoseWaitsUnder(l)
}

// LeaseRetired moves the users of a lease of another history to a fresh lease.
func (u leaseUsers) LeaseRetired(l *heartbeat.Lease) {
	u.m.acquirer.GiveUpAll(l) // they are not verified
	u.m.background.Spawn(func() { u.m.reconciler.Rotate(l) })
	u.m.watches.LeaseEnded()
}

// SignalsWait reads the signals for holders.
func (u leaseUsers) SignalsWait() { u.m.signals.Poll() }

// Verify loses the locks that a promoted server does not know.
func (u leaseUsers) Verify(ctx context.Context, leases []*heartbeat.Lease, history store.History, trusted func(*heartbeat.Lease)) error {
	return u.m.reconciler.Verify(ctx, leases, history, trusted)
}
