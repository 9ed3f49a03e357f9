package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// fail tells what becomes of an attempt whose question was not answered.
func (b *Attempt) fail(err error) {
	// If news came first, the attempt has won. close decides both in one step, because otherwise the withdrawal could free a
	// delivered lock.
	was, first := b.close(err)
	if !first {
		if store.OutcomeUnknown(err) {
			b.onLateAnswer()
		}
		return
	}
	// The store may have carried the question out, or still do so. So the attempt is withdrawn, in the background, until that is
	// certainly over: see withdraw. A grant that other calls have is theirs.
	if (store.OutcomeUnknown(err) || was == cancelling) && b.repeated == 0 {
		b.aq.obs.OutcomeUnknown(b.req.Key, b.req.Traceparent, err)
		b.aq.withdraw(b.tr.Carry(context.Background()), b.Ref(), b.mayGet(), b.beginCleanup())
	}
	// The call does not wait for that. A repeat of the request does.
	b.end()
}

// beginCleanup records that the store may be changed until settled is called. The attempt must not have ended.
func (b *Attempt) beginCleanup() (settled func()) {
	b.inFlight.Add(1)
	return b.inFlight.Done
}

// onLateAnswer withdraws an attempt again whose answer came after it was over. The store may have granted the lock, or queued the
// attempt, after the withdrawal. If the lease was lost early, or the lock has a MinHold, the key would be kept for nobody.
func (b *Attempt) onLateAnswer() {
	b.mu.Lock()
	won := b.err == nil
	b.mu.Unlock()
	if !won && (b.keepsKey() || b.leaseIsKept()) {
		b.aq.withdraw(b.tr.Carry(context.Background()), b.Ref(), b.aq.Within(b.lasts()), func() {})
	}
}

// handBack releases an undelivered grant in the background, without its MinHold.
func (b *Attempt) handBack(token int64) {
	if token == b.repeated {
		return
	}
	c, matters := store.Claim{Key: b.req.Key, Token: token, AtOnce: true, Traceparent: b.req.Traceparent}, b.mayGet()
	if b.req.Bind == types.BindSession {
		c.Lease = b.Lease().ID()
	} else {
		c.Undelivered = true
		matters = b.aq.Within(b.lasts())
	}
	b.aq.obs.HandedBack(b.req.Key, token, b.req.Traceparent)
	b.aq.ReleaseClaim(b.tr.Carry(context.Background()), c, matters, b.beginCleanup())
}

// HandBackWon releases the grant of the attempt, if it is still held.
func (b *Attempt) HandBackWon(token int64) {
	if b.req.Bind == types.BindTTL {
		b.handBack(token)
		return
	}
	settled := b.beginCleanup()
	if r := b.s.HandBackLock(b.quota, settled); r != nil {
		b.aq.Release(r)
		return
	}
	settled()
	if b.keepsKey() || b.leaseIsKept() { // it was lost
		c := b.s.LockOf(b.quota).Claim() // the store may know it by another attempt: see handOn
		c.AtOnce = true
		b.aq.ReleaseClaim(b.tr.Carry(context.Background()), c, b.mayGet(), b.beginCleanup())
	}
}

// keepsKey reports whether a session's lock keeps its key after the end of its lease, for its MinHold.
func (b *Attempt) keepsKey() bool { return b.req.Bind == types.BindSession && b.req.MinHold > 0 }

func (b *Attempt) leaseLives() bool { return b.Lease() != nil && b.Lease().Alive(clock.Read(b.aq.clk)) }

// leaseIsKept reports whether a session's attempt has lost its lease early: the store may still grant under it. It is never true
// for bind:ttl.
func (b *Attempt) leaseIsKept() bool {
	return b.req.Bind == types.BindSession && b.Lease().KeptUntilDeadline(b.aq.clk.Now())
}

// mayGet returns a test that is true while the store may still keep something of the attempt. A session's lock and a queue position:
// until the lease's deadline. A bind:ttl lock, or a MinHold: for the longer of TTL and MinHold after the lease was last seen alive.
func (b *Attempt) mayGet() func() bool {
	if b.req.Bind == types.BindSession && !b.keepsKey() {
		return func() bool { return b.Lease().UntilDeadline(b.aq.clk.Now()) > 0 }
	}
	lasts := b.aq.Within(b.lasts())
	return func() bool {
		if b.leaseLives() {
			lasts = b.aq.Within(b.lasts())
		}
		return lasts()
	}
}

// Within returns a function that is true for the time d from now on.
func (aq *Acquirer) Within(d time.Duration) func() bool {
	until := aq.clk.Now().Add(d)
	return func() bool { return aq.clk.Now().Before(until) }
}

// withdraw frees what an attempt of unknown outcome may have got. It does so at once, for waiters of the key,
// and again when the server has certainly given up, because a buffered question may be carried out after the
// first withdrawal.
func (aq *Acquirer) withdraw(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	aq.withdrawOnce(ctx, a, matters, func() { aq.withdrawAgain(ctx, a, matters, settled) })
}

// withdrawAgain repeats a withdrawal until nothing can be carried out after it. By this machine's clock this takes two
// timeouts of the store. It takes longer if the server's clock was set back, or stood still.
func (aq *Acquirer) withdrawAgain(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	again := func() {
		aq.askToWithdraw(ctx, a, matters, func(o store.Outcome) {
			if o == store.Unsettled {
				aq.withdrawAgain(context.Background(), a, matters, settled) // see persist
				return
			}
			settled()
		})
	}
	if aq.inline || !matters() || !aq.later.After(2*aq.cfg.StoreTimeout, again) {
		settled()
	}
}

func (aq *Acquirer) withdrawOnce(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	aq.askToWithdraw(ctx, a, matters, func(store.Outcome) { settled() })
}

// askToWithdraw repeats a withdrawal until the store answers it or matters returns false.
func (aq *Acquirer) askToWithdraw(ctx context.Context, a store.Attempt, matters func() bool, settled func(store.Outcome)) {
	var last store.Outcome
	persist(ctx, aq.later, aq.lanes.Withdrawals.Submit, a, func(o store.Outcome, err error) bool {
		aq.heldCache.Drop(a.Key)
		last = o
		return err == nil && o != store.RowLocked || !matters()
	}, func() { settled(last) })
}

// forgetWait makes the store forget a skipped waiter. It repeats this until the store confirms or the waiter's
// lease is dead.
func (aq *Acquirer) forgetWait(ctx context.Context, a store.Attempt, matters func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Cancels.Submit, a, func(ans store.Answer, err error) bool {
		return err == nil && ans.Outcome != store.RowLocked || !matters()
	}, settled)
}

// ReleaseClaim releases a grant in the background, until the store confirms it or matters returns false.
func (aq *Acquirer) ReleaseClaim(ctx context.Context, c store.Claim, matters func() bool, settled func()) {
	persist(ctx, aq.later, aq.lanes.Releases.Submit, c, func(v store.Verdict, err error) bool {
		if types.Judged("release", v.Status, err) != nil && matters() {
			return false
		}
		aq.heldCache.Drop(c.Key)
		return true
	}, settled)
}
