package attempt

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// winDirectly takes a lock granted by the running question. Its time counts from the question, to be safe.
func (b *Attempt) winDirectly(ans *store.Answer) {
	b.mu.Lock()
	sent := b.sent
	b.mu.Unlock()
	b.winAsOf(ans, sent)
}

// winAsOf takes a lock from the answer to a question that was sent at the given time.
func (b *Attempt) winAsOf(ans *store.Answer, sent time.Time) {
	t := clock.Read(b.aq.clk)
	ans.ExpiresIn -= t.Now.Sub(sent)
	b.win(ans, sent, t)
}

// win takes the lock for the session, or hands it back if it is unwanted. since is before the grant, or zero.
func (b *Attempt) win(ans *store.Answer, since time.Time, t clock.Tick) {
	b.mu.Lock()
	if b.phase == over {
		b.mu.Unlock()
		b.onLateAnswer()
		return
	}
	var cohort *holdings.Cohort
	if b.inQueue.Load() && !b.req.Shared { // otherwise hardly any others wait
		cohort = holdings.NewCohort(ans, t.Now)
	}
	if !b.takeAndUnlock(ans, since, t, cohort) {
		b.handBack(ans.Token)
	}
	b.end()
}

// takeAndUnlock makes the grant the call's, and reports whether the call has it. The caller holds b.mu, which
// is unlocked here.
func (b *Attempt) takeAndUnlock(ans *store.Answer, since time.Time, t clock.Tick, cohort *holdings.Cohort) (kept bool) {
	now := t.Now
	b.since = since
	// A grant found by the first question is not a hand-off, because a repeated request may find an old grant.
	handedOver := b.wasQueued || b.since.IsZero() || b.phase != asking && ans.HandedBy != ""
	b.phase = over
	wanted := !b.unwanted
	b.result, b.wonAt = b.grantOf(ans, now), now
	var before []*holdings.Lock
	if kept = wanted; wanted {
		before, kept = b.join(ans, t, cohort)
	}
	if !kept {
		b.err = b.whyNotKept()
	}
	b.mu.Unlock()
	switch {
	case kept && handedOver:
		b.aq.obs.HandedOver(b.tr, ans.HandedBy, ans.GrantedFor)
	case kept:
		b.tr.FoundFree()
	}
	for _, h := range before {
		h.Lose(types.LostExpired)
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.aq.granted(now, b.lasts(), kept && b.req.Bind == types.BindSession)
	return kept
}

// whyNotKept returns why a call does not get the grant of its attempt. Another attempt of a repeatable request
// would find the same grant, which is being handed back.
func (b *Attempt) whyNotKept() error {
	if b.req.Bind == types.BindTTL || clock.Past(b.until, b.aq.clk.Now()) {
		return &store.Error{Op: "acquire", Err: errors.New("the grant was over when the store's answer came")}
	}
	return ErrAttemptLost
}

// join makes the granted lock the session's. It returns false if the session or the lease has ended, because
// such a grant must not be delivered. before are the key's lost locks here. The caller holds b.mu.
func (b *Attempt) join(ans *store.Answer, t clock.Tick, cohort *holdings.Cohort) (before []*holdings.Lock, ok bool) {
	if b.req.Bind == types.BindTTL {
		return nil, b.result.ExpiresIn > 0
	}
	if b.req.MaxHold > 0 {
		if b.since.IsZero() { // the grant came by news of a hand-off
			b.since = t.Now
		}
		b.until = b.since.Add(b.req.MaxHold)
	}
	b.Lease().Pin() // meanwhile, the attempt's own pin keeps the lease
	w := holdings.Won{
		Req: b.req, Token: ans.Token, Slot: ans.Slot, Lease: b.Lease(), AcquiredAt: ans.AcquiredAt,
		Until: b.until, Span: b.tr.Hold(b.req.Shared), Cohort: cohort,
	}
	if before, ok = b.s.AddMember(w, b.slot, t); !ok {
		b.Lease().Unpin()
	}
	return before, ok // a loss of the lease at this moment may miss this lock, so deliver checks it
}

func (b *Attempt) grantOf(ans *store.Answer, now time.Time) types.Grant {
	g := types.Grant{
		Key: b.req.Key, Token: ans.Token, Bind: b.req.Bind, ExpiresIn: ans.ExpiresIn,
		Waited: now.Sub(b.began), AcquiredAt: ans.AcquiredAt, Shared: b.req.Shared, Limit: b.req.Limit, Slot: ans.Slot,
	}
	g.Reentry, g.Entry = 1, 1
	if b.req.Bind == types.BindSession {
		g.Session = b.s.Name()
	} else {
		g.ExpiresIn = heartbeat.Reliable(ans.ExpiresIn)
	}
	return g
}

// skipped ends an attempt whose work the holder has done. The store remembers the waiter until the sidecar
// confirms.
func (b *Attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.Ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}

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
	if b.arrival != nil {
		b.arrival.Leave()
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
