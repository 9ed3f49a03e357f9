package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/background"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// MayHave returns a test: may the store still have what a cleanup frees? A cleanup is repeated while it is true. With a lease, that is until
// the lease's deadline and the time on after it. Without one (nil), it is for the time on from now.
func (aq *Acquirer) MayHave(l *heartbeat.Lease, on time.Duration) func() bool {
	end := aq.clk.Now()
	return func() bool {
		if l != nil && l.Deadline().After(end) {
			end = l.Deadline() // renewals move it
		}
		return aq.clk.Now().Before(end.Add(on))
	}
}

// mayHave is [Acquirer.MayHave] of the attempt. A session's lock and a queue position end with the lease. A MinHold, and a bind:ttl lock,
// may begin as late as that.
func (b *Attempt) mayHave() func() bool {
	var on time.Duration
	if b.req.Bind == types.BindTTL || b.req.MinHold > 0 {
		on = b.lasts()
	}
	return b.aq.MayHave(b.Lease(), on)
}

// outlivesLoss reports whether the loss of the lease leaves something of a session's attempt in the store: a MinHold lasts longer than
// the lease, and a lease that was lost early is revoked only at its deadline. A bind:ttl attempt does not end with its lease.
func (b *Attempt) outlivesLoss() bool {
	return b.req.Bind == types.BindSession && (b.req.MinHold > 0 || b.Lease().LostEarly(b.aq.clk.Now()))
}

// beginCleanup records that the store may be changed until settled is called. The attempt must not have ended.
func (b *Attempt) beginCleanup() (settled func()) {
	b.inFlight.Add(1)
	return b.inFlight.Done
}

// handBack releases a grant that did not become its session's, without its MinHold. A grant that other calls have is theirs.
func (b *Attempt) handBack(token int64) {
	if token == b.repeated {
		return
	}
	c, mayHave := store.Claim{Key: b.req.Key, Token: token, AtOnce: true, Traceparent: b.req.Traceparent}, b.mayHave()
	if b.req.Bind == types.BindSession {
		c.Lease = b.Lease().ID()
	} else {
		c.Undelivered = true
		mayHave = b.aq.MayHave(nil, b.lasts())
	}
	b.aq.obs.HandedBack(b.req.Key, token, b.req.Traceparent)
	b.aq.ReleaseClaim(b.tr.Carry(context.Background()), c, mayHave, b.beginCleanup())
}

// handBackWon releases the lock of an attempt that has won. The app does not know of it.
func (b *Attempt) handBackWon() {
	if b.req.Bind == types.BindTTL {
		b.handBack(b.result.Token)
		return
	}
	settled := b.beginCleanup()
	if r := b.s.HandBackLock(b.admission, settled); r != nil {
		b.aq.Release(r)
		return
	}
	settled()
}

// withdraw frees what an attempt of unknown outcome may have got. It repeats that until the store answers, or can have nothing of it any more.
func (aq *Acquirer) withdraw(ctx context.Context, a store.Attempt, mayHave func() bool, settled func(store.Outcome)) {
	var last store.Outcome
	persist(ctx, aq.later, aq.lanes.Withdrawals.Submit, a, func(o store.Outcome, err error) bool {
		aq.heldCache.Drop(a.Key)
		last = o
		return err == nil && o != store.RowLocked || !mayHave()
	}, func() { settled(last) })
}

// withdrawFinally withdraws an attempt at once, for the waiters of the key, and again when nothing can be carried out after it: a question
// in a buffer may come after the first withdrawal. By this machine's clock the store gives a question up within two timeouts. It takes
// longer if the server's clock was set back, or stood still; then the store answers Unsettled.
func (aq *Acquirer) withdrawFinally(ctx context.Context, a store.Attempt, mayHave func() bool, settled func()) {
	var wait func(store.Outcome)
	again := func() {
		aq.withdraw(ctx, a, mayHave, func(o store.Outcome) {
			if o == store.Unsettled {
				wait(o)
				return
			}
			settled()
		})
	}
	wait = func(store.Outcome) {
		if aq.inline || !mayHave() || !aq.later.After(2*aq.cfg.StoreTimeout, again) {
			settled()
		}
	}
	aq.withdraw(ctx, a, mayHave, wait)
}

// forgetWait makes the store forget a skipped waiter. It repeats that until the store confirms it, or can have nothing of it any more.
func (aq *Acquirer) forgetWait(ctx context.Context, a store.Attempt, mayHave func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Cancels.Submit, a, func(ans store.Answer, err error) bool {
		return err == nil && ans.Outcome != store.RowLocked || !mayHave()
	}, settled)
}

// ReleaseClaim releases a grant in the background, until the store confirms it, or can have nothing of it any more.
func (aq *Acquirer) ReleaseClaim(ctx context.Context, c store.Claim, mayHave func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Releases.Submit, c, func(v store.Verdict, err error) bool {
		if types.ClaimError("release", v.Status, err) != nil && mayHave() {
			return false
		}
		aq.heldCache.Drop(c.Key)
		return true
	}, settled)
}

// ReleaseMoved releases a lock that has ended here, and that the store has moved to a lease, which the caller has pinned. If the lock was
// lost early, its app may still believe in it: then this follows at the deadline, and the lease stays pinned until then. If the app gives the lock
// up before, its own release is sent at once.
func (aq *Acquirer) ReleaseMoved(h *holdings.Lock, c store.Claim, to *heartbeat.Lease, settled func()) {
	to.Pin()
	unpin := func() {
		to.Unpin()
		settled()
	}
	release := func() { aq.ReleaseClaim(context.Background(), c, aq.MayHave(to, 0), unpin) }
	until := h.BelievedUntil()
	switch {
	case until.IsZero():
		release()
	case !aq.later.After(until.Sub(aq.clk.Now()), release): // the sidecar stops: the revocation of its leases ends the lock
		unpin()
	}
}

// persist submits an item to a lane until done returns true or the manager stops. done is called with the
// answer to each try. Then settled is called once. Only the first try is in the trace of ctx, because in an
// outage the later ones would displace everything else in the exporter's queue.
func persist[T, R any](
	ctx context.Context, later *background.Runner, submit func(context.Context, T, func(R, error)) error, item T,
	done func(R, error) bool, settled func(),
) {
	answered := func(r R, err error) {
		again := func() { persist(context.Background(), later, submit, item, done, settled) }
		if done(r, err) || !later.Retry(again) {
			settled()
		}
	}
	if err := submit(ctx, item, answered); err != nil {
		// The manager has stopped. The revocation of its leases ends everything under them.
		done(*new(R), err)
		settled()
	}
}
