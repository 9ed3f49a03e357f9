package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// LeaseLost makes the attempts that wait under a lease begin again under another one. It returns their number.
func (aq *Acquirer) LeaseLost(l *heartbeat.Lease) int {
	waiting := aq.Queue.WaitingUnder(l)
	for _, b := range waiting {
		b.leaseGone(l)
	}
	return len(waiting)
}

// leaseGone ends the attempt after the loss of its lease, unless it was moved. The revocation of the lease removes the waiter,
// and a session's lock that it still wins. If the lease is revoked only at its deadline, or the lock has a MinHold, the attempt is also
// withdrawn now: otherwise the key could be kept for nobody. A bind:ttl lock outlives the lease, so its attempt first learns its outcome.
func (b *Attempt) leaseGone(l *heartbeat.Lease) {
	switch b.loseLease(l) {
	case untouched:
		return
	case mayHaveWon:
		b.leaveQueue()
		return
	case lostAll:
	}
	switch ctx := b.tr.Carry(context.Background()); {
	case b.keepsKey():
		b.aq.withdraw(ctx, b.Ref(), b.mayGet(), b.beginCleanup())
	case b.leaseIsKept(): // once, because a repeat of the request waits for it; see onLateAnswer
		b.aq.withdrawOnce(ctx, b.Ref(), b.mayGet(), b.beginCleanup())
	}
	b.end()
}

// onLeaseLost ends an attempt whose lease the store does not know any more: so it is lost for all its users.
func (b *Attempt) onLeaseLost() {
	if b.Lease() != nil {
		b.aq.leases.Lose(b.Lease(), types.LostExpired)
	}
	b.Finish(ErrAttemptLost)
}
