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

// holds reports whether a session got an exclusive lock by the attempt.
func (b *Attempt) holds() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.phase == over && b.err == nil && b.req.Bind == types.BindSession && !b.req.Shared
}

// Finish ends an attempt that has not won.
func (b *Attempt) Finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close sets the phase to over without a win. It returns the previous phase, and whether that was not over.
func (b *Attempt) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// cleanedUp is closed when the attempt can no longer change the store.
func (b *Attempt) cleanedUp() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		b.inFlight.Wait()
		close(settled)
	}()
	return settled
}

// end ends the attempt's use of its queue position, its arrival and its lease.
func (b *Attempt) end() {
	if b.inQueue.Load() {
		b.aq.queue.remove(b)
	}
	b.arrival.Leave()
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

// IsOver reports whether an attempt is over and has ended.
func (b *Attempt) IsOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Ends is closed when IsOver is true.
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

// keepsKey reports whether a session's lock keeps its key after the end of its lease, for its MinHold.
func (b *Attempt) keepsKey() bool { return b.req.Bind == types.BindSession && b.req.MinHold > 0 }

func (b *Attempt) leaseLives() bool { return b.Lease() != nil && b.Lease().Alive(clock.Read(b.aq.clk)) }

// mayGet returns a function that reports whether the attempt may still have something: while its lease lives, a
// session's lock or a queue position; after that, a bind:ttl lock for its TTL, or a key for its MinHold.
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

// lasts is how long a lock keeps its key after the attempt's lease.
func (b *Attempt) lasts() time.Duration { return max(b.req.TTL, b.req.MinHold) }

// beginCleanup records that the store may be changed until settled is called. The attempt must not have ended.
func (b *Attempt) beginCleanup() (settled func()) {
	b.inFlight.Add(1)
	return b.inFlight.Done
}

// onLateAnswer withdraws an attempt again if its lease was lost. The question may have been carried out after
// the withdrawal and before the revocation. Its undelivered lock would then keep the key for its MinHold.
func (b *Attempt) onLateAnswer() {
	b.mu.Lock()
	won := b.err == nil
	b.mu.Unlock()
	if !won && b.keepsKey() {
		b.aq.withdrawOnce(b.tr.Carry(context.Background()), b.Ref(), b.aq.Within(b.lasts()), func() {})
	}
}

// handBack releases an undelivered grant in the background, without its MinHold.
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

// Within returns a function that is true for the time d from now on.
func (aq *Acquirer) Within(d time.Duration) func() bool {
	until := aq.clk.Now().Add(d)
	return func() bool { return aq.clk.Now().Before(until) }
}

// HandBackMember releases the grant of the attempt, if it is still held.
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
	if b.keepsKey() { // it was lost
		b.aq.withdrawOnce(b.tr.Carry(context.Background()), b.Ref(), b.mayGet(), b.beginCleanup())
	}
}
