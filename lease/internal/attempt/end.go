package attempt

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// How an attempt ends.

// Won is the grant that the attempt has won; zero: none.
func (b *Attempt) Won() types.Grant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Finish ends an attempt that has not won.
func (b *Attempt) Finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close makes the attempt be over without a win, and reports in which phase it was,
// and whether it was not over before.
func (b *Attempt) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// cleanedUp is closed when nothing can change the store any more on the attempt's behalf.
func (b *Attempt) cleanedUp() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		b.inFlight.Wait()
		close(settled)
	}()
	return settled
}

// end lets go of what an attempt keeps: its place in the books, its lease.
func (b *Attempt) end() {
	b.arrival.Leave()
	if b.inQueue.Load() {
		b.aq.queue.remove(b)
	}
	if b.Lease() != nil {
		b.Lease().Unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.inFlight.Done()
}

// IsOver reports whether an attempt is over, and has ended.
func (b *Attempt) IsOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Ends is closed when it is.
func (b *Attempt) Ends() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = make(chan struct{})
		if b.ended {
			close(b.done)
		}
	}
	return b.done
}

// unwant makes an attempt hand back what it wins.
func (b *Attempt) unwant() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwanted = true
}

// IsUnwanted reports whether the attempt hands back what it wins.
func (b *Attempt) IsUnwanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unwanted
}

// A grant that was not delivered is handed back, for as long as the store may keep it. A lock with a
// MinHold keeps its key after its lease.

// keepsKey reports whether a lock of a session keeps its key after its lease, for its MinHold.
func (b *Attempt) keepsKey() bool { return b.req.Bind == types.BindSession && b.req.MinHold > 0 }

// leaseLives reports whether the store keeps what the attempt has. A session's lock
// lasts, if nobody frees it, as long as its lease is renewed, not only for a TTL.
func (b *Attempt) leaseLives() bool { return b.Lease() != nil && b.Lease().Alive(clock.Read(b.aq.clk)) }

// mayGet tells for how long the attempt may have something: under the lease a
// session's lock or a queue position; and after that a bind:ttl lock for its TTL, and
// a key for its MinHold.
func (b *Attempt) mayGet() func() bool {
	if b.req.Bind == types.BindSession && !b.keepsKey() {
		return b.leaseLives
	}
	lasts := b.aq.Within(b.lasts())
	return func() bool {
		if b.leaseLives() {
			lasts = b.aq.Within(b.lasts())
		}
		return lasts()
	}
}

// lasts is for how long a lock that outlives the attempt's lease keeps its key.
func (b *Attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// beginCleanup notes that something may change the store on the attempt's behalf until the
// returned function is called. The attempt must not be over, or must have been closed but not
// ended.
func (b *Attempt) beginCleanup() (settled func()) {
	b.inFlight.Add(1)
	return b.inFlight.Done
}

// onLateAnswer hears an answer that came when the attempt was over. If its lease was lost, the
// store may have heard the question after the withdrawal and before the revocation. Then the
// lock would keep its key for its MinHold, although nobody was told of it: it is withdrawn again.
func (b *Attempt) onLateAnswer() {
	b.mu.Lock()
	won := b.err == nil
	b.mu.Unlock()
	if !won && b.keepsKey() {
		b.aq.withdrawOnce(b.tr.Carry(context.Background()), b.Ref(), b.aq.Within(b.lasts()), func() {})
	}
}

// handBack releases what the attempt has won, in the background. Nobody was told of it,
// so its MinHold keeps it from nobody.
func (b *Attempt) handBack(token int64) {
	if token == b.shared {
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
	b.aq.Free(b.tr.Carry(context.Background()), c, matters, b.beginCleanup())
}

// Within reports true for so long.
func (aq *Acquirer) Within(d time.Duration) func() bool {
	until := aq.clk.Now().Add(d)
	return func() bool { return aq.clk.Now().Before(until) }
}

// HandBackMember releases what the attempt has won, if it is still there.
func (b *Attempt) HandBackMember(token int64) {
	if b.req.Bind == types.BindTTL {
		b.handBack(token)
		return
	}
	settled := b.beginCleanup()
	if b.s.HandBackMember(b.slot, settled) {
		return
	}
	settled()
	if b.keepsKey() { // lost
		b.aq.withdrawOnce(b.tr.Carry(context.Background()), b.Ref(), b.mayGet(), b.beginCleanup())
	}
}
