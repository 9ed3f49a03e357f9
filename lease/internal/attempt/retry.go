package attempt

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// MaxAttempts limits the attempts of a call that does not wait. Each follows a loss of the lease.
const MaxAttempts = 3

// The pauses of a call between its attempts grow from restMin to RestMax.
const (
	restMin = 50 * time.Millisecond
	RestMax = time.Second
)

// MayGoOn returns nil if another attempt may succeed after this error. It first pauses if the store is the
// cause, or if one attempt after another ends like this.
func (c *Call) MayGoOn(err error) error {
	outage := c.WasQueued && store.Unavailable(err)
	if !errors.Is(err, ErrAttemptLost) && (!outage || c.timed) {
		return err
	}
	switch {
	case c.ctx.Err() != nil:
		return types.ErrCallerLeft
	case c.S != nil && c.S.HasEnded():
		return types.ErrSessionEnded
	case c.aq.IsDraining():
		return types.ErrDraining
	case c.timed:
		return c.Timeout()
	case c.req.Wait == 0 && c.attempts >= MaxAttempts:
		return &store.Error{Op: "acquire", Err: errors.New("the lease under the lock was lost")}
	case outage:
		return c.waitOut()
	case c.req.Wait != 0 && c.attempts > 1: // not the first loss
		return c.pause()
	default:
		return nil
	}
}

// waitOut pauses until another attempt may succeed.
func (c *Call) waitOut() error {
	for {
		err := c.pause()
		if err != nil || c.aq.store.Ready() == nil { // Ready sends no statement
			return err
		}
	}
}

func (c *Call) pause() error {
	c.StartTimer()
	c.rest = max(c.rest, restMin)
	rested := make(chan struct{})
	timer := time.AfterFunc(clock.Jittered(c.rest), func() { close(rested) })
	defer timer.Stop()
	c.rest = min(2*c.rest, RestMax)
	return c.Until(rested)
}

// mayEnterSoon reports whether a call was denied because its own owner holds the lock in the same session. The
// store may just have granted it to another call, which does not know that yet.
func (c *Call) mayEnterSoon(err error) bool {
	held, denied := errors.AsType[*types.HeldError](err)
	return denied && c.attempts < MaxAttempts && c.S.Expects(&held.Lock, c.req)
}

// awaitEntry returns nil when the call may enter, or after [RestMax] to ask once more.
func (c *Call) awaitEntry() error {
	e := c.S.ExpectEntry(c.req)
	defer e.Close()
	defer time.AfterFunc(RestMax, e.Wake).Stop()
	c.aq.queue.hint(c.aq.queue.those(func(b *Attempt) bool { return b.s == c.S && b.req.Key == c.req.Key }))
	return c.Until(e.Opens())
}

// ownKeyPause is after what time the log warns that a call waits for a key of its own session.
const ownKeyPause = 10 * time.Second

// WarnOfOwnKey logs once, if the call still waits after a while, that its own explicit session holds the key. Another
// thread of the session may release it, so the call is not refused.
func (c *Call) WarnOfOwnKey() (stop func()) {
	if c.S == nil || !c.S.Explicit() {
		return func() {}
	}
	if held, _ := c.S.Owns(c.req.Key); !held {
		return func() {}
	}
	timer := time.AfterFunc(ownKeyPause, func() {
		if held, _ := c.S.Owns(c.req.Key); held {
			c.aq.obs.WaitsForItself(c.req.Key, c.S.Name(), c.req.Traceparent)
		}
	})
	return func() { timer.Stop() }
}

// LeaseLost makes the attempts that wait under a lease begin again under another one. It returns their number.
func (aq *Acquirer) LeaseLost(l *heartbeat.Lease) int {
	waiting := aq.WaitingUnder(l)
	for _, b := range waiting {
		b.leaseGone(l)
	}
	return len(waiting)
}

// leaseGone ends the attempt after the loss of its lease, unless it was moved. The revocation of the lease
// drops the waiter and a session's lock that it may still win. If that is later, the attempt is withdrawn, because otherwise
// the key could be kept for nobody until then. A bind:ttl lock would outlive the lease, so its attempt first learns its outcome.
func (b *Attempt) leaseGone(l *heartbeat.Lease) {
	b.mu.Lock()
	if b.Lease() != l || b.phase == over {
		b.mu.Unlock()
		return
	}
	if b.req.Bind == types.BindTTL {
		b.positionLost = true
		b.mu.Unlock()
		b.cancel()
		return
	}
	b.phase, b.err = over, ErrAttemptLost
	b.mu.Unlock()
	switch ctx := b.tr.Carry(context.Background()); {
	case b.keepsKey():
		b.aq.withdraw(ctx, b.Ref(), b.mayGet(), b.beginCleanup())
	case b.leaseStays(): // once, because a repeat of the request waits for it; see onLateAnswer
		b.aq.withdrawOnce(ctx, b.Ref(), b.mayGet(), b.beginCleanup())
	}
	b.end()
}

func (b *Attempt) leaseLost() {
	if b.Lease() != nil {
		b.aq.leases.Lose(b.Lease(), types.LostExpired)
	}
	b.Finish(ErrAttemptLost)
}

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
func (b *Attempt) Moved(to *heartbeat.Lease, lives func() bool, settled func()) {
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
		b.aq.withdrawOnce(context.Background(), b.Ref(), lives, settled)
	default:
		h := b.s.LockOf(b.slot)
		if h != nil && h.Token == token && (h.Moved(to) || h.HandedOn()) { // even if it is being released
			settled()
			return
		}
		c := store.Claim{Key: b.req.Key, Token: token, Lease: to.ID(), AtOnce: !given}
		if h != nil && h.Token == token {
			c.Served = h.Claim().Served
		}
		b.aq.Free(context.Background(), c, lives, settled)
	}
}
