package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// BeginMove reports whether the attempt is queued and may be moved to another lease. EndMove must follow.
func (b *Attempt) BeginMove() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase != queued {
		return false
	}
	b.inFlight.Add(1)
	return true
}

// EndMove ends what BeginMove began. A repeat of the request waits for this.
func (b *Attempt) EndMove() { b.inFlight.Done() }

// Moved makes a queued attempt a user of its new lease. It may have won meanwhile.
func (b *Attempt) Moved(to *heartbeat.Lease, settled func()) {
	b.mu.Lock()
	ended, token, given := b.phase == over, b.result.Token, b.err == nil
	var old *heartbeat.Lease
	if !ended {
		to.Pin()
		old = b.under.Swap(to)
	}
	b.mu.Unlock()
	switch {
	case !ended:
		old.Unpin()
		if to.Lost() {
			b.leaseGone(to)
		}
		settled()
	case token != 0 && b.req.Bind == types.BindTTL: // it has a lease of its own
		settled()
	case token == 0: // it left, or failed
		b.aq.withdraw(context.Background(), b.Ref(), b.aq.MayHave(to, 0), func(store.Outcome) { settled() })
	default:
		h := b.s.LockOf(b.admission)
		if h != nil && h.Token == token && (h.Moved(to) || HandedOn(h)) { // even if it is being released
			settled()
			return
		}
		c := store.Claim{Key: b.req.Key, Token: token, Lease: to.ID(), AtOnce: !given}
		if h != nil && h.Token == token {
			c.Served = h.Claim().Served
			b.aq.ReleaseMoved(h, c, to, settled)
			return
		}
		b.aq.ReleaseClaim(context.Background(), c, b.aq.MayHave(to, 0), settled)
	}
}
