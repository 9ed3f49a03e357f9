package storetest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// longHold outlasts the test and the TTL of every lease.
	longHold = 3 * longTTL
)

// Proves: promise 11
func holdCases() []testCase {
	return []testCase{
		{"a release keeps the key until the hold is over", releaseLeavesTheHold},
		{"a waiter gets the key when the hold is over, and is notified that the hold ends early", pendingHoldEnds},
		{"a released hold that ended is released, not expired", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, shortHoldTime)
			first := a.granted(ask)
			a.released(claim(ask, first.Token))
			b.poll("the end of the hold", func() bool { return !b.get("k").Held })
			if l := b.get("k"); l.Expired {
				f.Errorf("expired although it was released: %+v", l)
			}
			a.stands(a.release(claim(ask, first.Token)), store.Released)
			b.after(first, shortHoldTime, b.granted(b.ask("k")))
		}},
		{"a reap keeps the key until the hold is over", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, longHold)
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.revoke(ask.Lease)
			a.revoke(ask.Lease)
			b.isOnHold("k", token, 1, longHold)
			b.want(b.check(waiter), store.Queued)
			a.notClaimable(ask, token, store.Expired)
		}},
		{"the reap of an instance keeps its holds until they are over", func(f *fixture) {
			a, b := f.pair()
			kept, ended := a.askHold("kept", longTTL, longHold), a.askHold("ended", longTTL, shortHoldTime)
			token, first := a.granted(kept).Token, a.granted(ended)
			plain := a.granted(a.ask("plain")).Token
			waiter := b.ask("ended")
			b.queued(waiter, 1)
			a.Stop()
			b.reapInstance(a.id.Instance)
			if !b.Traits().Polls {
				b.awaitAnyNews(waiter) // it believed that the lease lasts for minutes
			}
			b.isOnHold("kept", token, 0, longHold)
			if got := b.granted(b.ask("plain")); got.Token <= plain {
				f.Errorf("tokens %d, then %d", plain, got.Token)
			}
			b.after(first, shortHoldTime, b.awaitGrant(waiter))
		}},
		{"a sweep leaves a pending hold alone", func(f *fixture) {
			a, b := f.pair()
			released, reaped := a.askHold("released", longTTL, longHold), a.askHold("reaped", longTTL, longHold)
			tokens := []int64{a.granted(released).Token, a.granted(reaped).Token}
			a.released(claim(released, tokens[0]))
			a.revoke(reaped.Lease)
			f.sweep(a)
			f.sweep(b)
			b.isOnHold("released", tokens[0], 0, longHold)
			b.isOnHold("reaped", tokens[1], 0, longHold)
		}},
		{"the key of a dead holder is kept until its hold is over", holdOutlivesTheTTL},
		{"a renewal does not end a hold early", func(f *fixture) {
			in := f.instance("a")
			ask := in.askHold("k", longTTL, longHold)
			if grant := in.granted(ask); grant.ExpiresIn <= longHold-patience || grant.ExpiresIn > longHold {
				f.Errorf("expires in %v, want the hold's %v", grant.ExpiresIn, longHold)
			}
			if kept := in.renew(ask.Lease); len(kept) != 1 {
				f.Fatal("not renewed")
			}
			if left := in.get("k").Holder.ExpiresIn; left <= longHold-patience || left > longHold {
				f.Errorf("expires in %v after a renewal, want the hold's %v", left, longHold)
			}
		}},
		{"a hold that is over does not keep the key", holdIsOver},
		{"a hold begins with the hand-off, after every kind of hand-off", holdOfAWaiter},
		{"a bind:ttl lock lasts at least as long as its hold", bindTTLHold},
		{"a withdrawal ignores the hold", func(f *fixture) {
			a, b := f.pair()
			session, bindTTL := a.askHold("k1", longTTL, longHold), a.askTTL("k2", longTTL)
			bindTTL.MinHold = longHold
			a.granted(session)
			a.granted(bindTTL)
			waiter := b.ask("k2")
			b.queued(waiter, 1)
			a.withdraw(session)
			a.withdraw(bindTTL)
			a.free("k1")
			b.awaitNews(waiter)
		}},
		{"a release at once ignores the hold", func(f *fixture) {
			a, b := f.pair()
			session, bindTTL := a.askHold("k1", longTTL, longHold), a.askTTL("k2", longTTL)
			bindTTL.MinHold = longHold
			c1, c2 := claim(session, a.granted(session).Token), claim(bindTTL, a.granted(bindTTL).Token)
			waiter := b.ask("k2")
			b.queued(waiter, 1)
			c1.AtOnce, c2.AtOnce = true, true
			a.released(c1)
			a.released(c2)
			a.free("k1")
			b.awaitNews(waiter)
			a.stands(a.release(c1), store.Released)
		}},
		{"a success skips waiters at once, although a hold keeps the key", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, longHold)
			token := a.granted(ask).Token
			skip, plain := b.askSkip("k"), b.ask("k")
			b.queued(skip, 1)
			b.queued(plain, 2)
			a.released(success(claim(ask, token), `3`))
			b.awaitSkip(skip, `3`)
			b.isOnHold("k", token, 1, longHold)
			b.queued(plain, 1)
		}},
		{"an ask for a key that a hold keeps is queued", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, longHold)
			token := a.granted(ask).Token
			a.released(claim(ask, token))
			waiter := b.ask("k")
			queued := b.queued(waiter, 1)
			for _, l := range []store.Lock{queued.Lock, b.want(b.acquire(b.ask("k")), store.Held).Lock} {
				if !l.Holder.HoldPending || l.Token != token || l.Holder.ExpiresIn <= 0 {
					f.Errorf("behind a pending hold: %+v", l)
				}
			}
			b.gaveUp(b.cancel(waiter), 1)
			b.isOnHold("k", token, 0, longHold)
		}},
		{"a claim of a grant whose hold is over hands the key off if it was not handed off before", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, shortHoldTime)
			first := a.granted(ask)
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.revoke(ask.Lease)
			f.poll("the end of the hold", func() bool { return !b.get("k").Held || b.get("k").Token != first.Token })
			if status := a.release(claim(ask, first.Token)).Status; status != store.Expired && status != store.UnknownToken {
				f.Errorf("status %d", status)
			}
			if l := b.get("k"); !l.Held || l.Token == first.Token {
				f.Errorf("not handed off: %+v", l)
			}
			b.holds("k", b.awaitGrant(waiter).Token, 0)
		}},
		{"a key whose hold is over goes to the first living waiter, whoever hands it on", func(f *fixture) {
			a, b := f.pair()
			ask := a.askHold("k", longTTL, shortHoldTime)
			first := a.granted(ask)
			dies, second, third := b.askUnder(b.openLease(longTTL), "k"), a.ask("k"), b.ask("k")
			b.queued(dies, 1)
			a.queued(second, 2)
			b.queued(third, 3)
			a.revoke(ask.Lease)
			f.poll("the end of the hold", func() bool { return !b.get("k").Held || b.get("k").Token != first.Token })
			b.revoke(dies.Lease) // may hand the key on, beside what it has to do
			if grant := a.want(a.check(second), store.Granted); grant.Token <= first.Token {
				f.Errorf("token %d after %d", grant.Token, first.Token)
			}
			b.want(b.check(third), store.Queued)
			b.want(b.check(dies), store.Gone)
		}},
		{"releases in a batch keep the holds and hand off the others", holdsInABatch},
		{"a hold and the other locks of its lease do not affect each other", holdUnderASharedLease},
		{"an expired holder cannot end its hold, but its sidecar can withdraw the grant", handBackOfAHold},
	}
}

// askHold returns a new attempt with a hold, under a fresh lease.
func (in *instance) askHold(key string, ttl, hold time.Duration) store.Ask {
	in.Helper()
	ask := in.askUnder(in.openLease(ttl), key)
	ask.MinHold = hold
	return ask
}

// isOnHold checks that a pending hold keeps a key. The hold is long and has just begun.
func (in *instance) isOnHold(key string, token int64, waiting int, hold time.Duration) {
	in.Helper()
	l := in.holds(key, token, waiting)
	if !l.Holder.HoldPending || l.Expired || l.Holder.ExpiresIn > hold || l.Holder.ExpiresIn <= hold-2*patience {
		in.Fatalf("not kept for %v: %+v", hold, l)
	}
}

// notClaimable checks that the holder can no longer claim a grant whose hold is pending.
func (in *instance) notClaimable(ask store.Ask, token int64, want store.ClaimStatus) {
	in.Helper()
	in.stands(in.release(claim(ask, token)), want)
	if want == store.Released {
		atOnce := claim(ask, token)
		atOnce.AtOnce = true
		in.stands(in.release(atOnce), want)
	}
	in.amended(claim(ask, token), store.Change{SetData: true, Data: []byte(`1`)}, want)
	if again := in.acquire(ask); again.Outcome == store.Granted {
		in.Fatalf("a repeat was granted: %+v", again)
	}
	if again := in.check(ask); again.Outcome != store.Gone {
		in.Fatalf("the check's outcome is %s", name(again.Outcome))
	}
	if l := in.get(ask.Key); l.Token != token || !l.Held || !l.Holder.HoldPending {
		in.Fatalf("the hold does not keep the key: %+v", l)
	}
}

// after checks that the next grant came after the hold of the grant before.
func (in *instance) after(first store.Answer, hold time.Duration, next store.Answer) {
	in.Helper()
	if next.Token <= first.Token {
		in.Fatalf("tokens %d, then %d", first.Token, next.Token)
	}
	if held := next.AcquiredAt.Sub(first.AcquiredAt); held < hold-time.Millisecond {
		in.Fatalf("the next holder got the key after %v, with a hold of %v", held, hold)
	}
}

func releaseLeavesTheHold(f *fixture) {
	a, b := f.pair()
	ask := a.askHold("k", longTTL, longHold)
	ask.Data = []byte(`{"a":1}`)
	token := a.granted(ask).Token
	a.released(claim(ask, token))
	b.isOnHold("k", token, 0, longHold)
	if l := b.lists(store.Query{Limit: 1}, "k")[0]; !l.Holder.HoldPending || l.Token != token {
		f.Errorf("listed: %+v", l)
	}
	a.notClaimable(ask, token, store.Released)
	a.renew(ask.Lease)
	b.isOnHold("k", token, 0, longHold)
	a.revoke(ask.Lease)
	b.isOnHold("k", token, 0, longHold)
	a.stands(a.release(claim(ask, token)), store.Released)
	a.withdraw(ask) // no effect: the grant has ended
	b.isOnHold("k", token, 0, longHold)
}

// pendingHoldEnds: the waiter's sidecar first believes that the lease lasts for minutes.
func pendingHoldEnds(f *fixture) {
	a, b := f.pair()
	ask := a.askHold("k", longTTL, shortHoldTime)
	first := a.granted(ask)
	waiter, second := b.ask("k"), a.ask("k")
	b.queued(waiter, 1)
	a.queued(second, 2)
	a.released(claim(ask, first.Token))
	if !b.Traits().Polls {
		b.awaitAnyNews(waiter)
	}
	if got := b.check(waiter); got.Outcome == store.Queued && got.Lock.Holder.ExpiresIn > shortHoldTime {
		f.Errorf("the hold ends in %v", got.Lock.Holder.ExpiresIn)
	}
	got := b.awaitGrant(waiter)
	b.after(first, shortHoldTime, got)
	b.holds("k", got.Token, 1)
	a.stands(a.release(claim(ask, first.Token)), store.UnknownToken)
}

// holdOutlivesTheTTL: the lease is neither renewed nor reaped before it ends.
func holdOutlivesTheTTL(f *fixture) {
	a, b := f.pair()
	hold := shortHoldTime + shortTTL
	var ask store.Ask
	var first store.Answer
	a.poll("a grant under a short lease", func() bool {
		ask = a.askHold("k", shortTTL, hold)
		first = a.acquire(ask)
		return first.Outcome == store.Granted
	})
	b.poll("the end of the hold", func() bool { return !b.get("k").Held })
	if l := b.get("k"); !l.Expired || l.Token != first.Token {
		f.Errorf("after a hold without a release: %+v", l)
	}
	a.stands(a.release(claim(ask, first.Token)), store.Expired)
	b.after(first, hold, b.granted(b.ask("k")))
}

func holdIsOver(f *fixture) {
	a, b := f.pair()
	hold := max(20*time.Millisecond, 2*oneStep)
	released, reaped := a.askHold("released", longTTL, hold), a.askHold("reaped", longTTL, hold)
	token := a.granted(released).Token
	a.granted(reaped)
	a.poll("the end of the holds", func() bool { return a.get("reaped").Holder.HeldFor > 2*hold })
	a.released(claim(released, token))
	b.free("released")
	if kept := a.renew(released.Lease); len(kept) != 1 {
		f.Error("a lease died although its lock was released after the hold")
	}
	a.revoke(reaped.Lease)
	b.free("reaped")
	if l := b.get("reaped"); !l.Expired {
		f.Errorf("reaped: %+v", l)
	}
}

// holdOfAWaiter grants locks with a hold to waiters in every possible way. The TTL of their leases
// is shorter than the hold.
func holdOfAWaiter(f *fixture) {
	a, b := f.pair()
	waiters := map[string]store.Ask{}
	waiter := func(key string, bindTTL bool) store.Ask {
		waiter := b.askHold(key, longTTL, longHold)
		if bindTTL {
			waiter.TTL, waiter.Lease = longTTL, b.lease
		}
		return waiter
	}
	wait := func(key string, bindTTL bool) {
		waiters[key] = waiter(key, bindTTL)
		b.queued(waiters[key], 1)
	}
	// The lock may expire before the waiter is queued. Then the case is tried again.
	waitForExpiry := func(key string, bindTTL bool) {
		b.poll("a queue position behind a short lock", func() bool {
			again := fmt.Sprint(key, ":", uuid.NewString())
			a.granted(a.askTTL(again, shortHoldTime))
			w := waiter(again, bindTTL)
			if b.enqueue(w).Outcome != store.Queued {
				return false
			}
			waiters[again] = w
			return true
		})
	}
	for _, bindTTL := range []bool{false, true} {
		suffix := map[bool]string{false: "", true: ":ttl"}[bindTTL]
		released, withdrawn := a.ask("released"+suffix), a.ask("withdrawn"+suffix)
		reaped := a.askUnder(a.openLease(longTTL), "reaped"+suffix)
		waitForExpiry("expired"+suffix, bindTTL)
		c := claim(released, a.granted(released).Token)
		wait("released"+suffix, bindTTL)
		a.granted(withdrawn)
		wait("withdrawn"+suffix, bindTTL)
		a.granted(reaped)
		wait("reaped"+suffix, bindTTL)
		a.released(c)
		a.withdraw(withdrawn)
		a.revoke(reaped.Lease)
	}
	for key, waiter := range waiters {
		grant := b.awaitGrant(waiter)
		if grant.ExpiresIn <= longHold-2*patience || grant.ExpiresIn > longHold {
			f.Errorf("%s: expires in %v, want the hold's %v", key, grant.ExpiresIn, longHold)
		}
		b.released(claim(waiter, grant.Token))
		a.isOnHold(key, grant.Token, 0, longHold)
		b.notClaimable(waiter, grant.Token, store.Released)
	}
}

func bindTTLHold(f *fixture) {
	a, b := f.pair()
	ask := a.askTTL("k", time.Minute)
	ask.MinHold = longHold
	grant := a.granted(ask)
	lasts := func(left time.Duration) {
		f.Helper()
		if left <= longHold-patience || left > longHold {
			f.Errorf("expires in %v, want the hold's %v", left, longHold)
		}
	}
	lasts(grant.ExpiresIn)
	a.sameGrant(grant, a.acquire(ask))
	c := claim(ask, grant.Token)
	lasts(b.amended(c, store.Change{TTL: time.Second}, store.Holds).Lock.Holder.ExpiresIn)
	longer := b.amended(c, store.Change{TTL: 2 * longHold}, store.Holds)
	if longer.Lock.Holder.ExpiresIn <= longHold {
		f.Errorf("expires in %v, want %v", longer.Lock.Holder.ExpiresIn, 2*longHold)
	}
	b.released(c)
	b.isOnHold("k", grant.Token, 0, longHold)
	b.notClaimable(ask, grant.Token, store.Released)

	short := a.askTTL("short", longTTL)
	short.MinHold = shortHoldTime
	first := a.granted(short)
	waiter := b.ask("short")
	b.queued(waiter, 1)
	a.released(claim(short, first.Token))
	b.after(first, shortHoldTime, b.awaitGrant(waiter))
}

func holdsInABatch(f *fixture) {
	a, b := f.pair()
	held, plain := a.askHold("held", longTTL, longHold), a.ask("plain")
	claims := []store.Claim{claim(plain, a.granted(plain).Token), claim(held, a.granted(held).Token)}
	waiters := []store.Ask{b.ask("plain"), b.ask("held")}
	b.queued(waiters[0], 1)
	b.queued(waiters[1], 1)
	verdicts, err := a.Release(f.ctx(), claims)
	if err != nil || len(verdicts) != 2 || verdicts[0].Status != store.Holds || verdicts[1].Status != store.Holds {
		f.Fatalf("release: %+v, %v", verdicts, err)
	}
	b.awaitNews(waiters[0])
	b.isOnHold("held", claims[1].Token, 1, longHold)
	b.want(b.check(waiters[1]), store.Queued)
}

// holdUnderASharedLease: a lease with a hold is like any other lease, before and after the release.
func holdUnderASharedLease(f *fixture) {
	a, b := f.pair()
	kept, plain := a.ask("kept"), a.ask("plain")
	kept.MinHold = longHold
	token, other := a.granted(kept).Token, a.granted(plain).Token
	a.released(claim(kept, token))
	if renewed := a.renew(a.lease); len(renewed) != 1 {
		f.Fatal("not renewed")
	}
	b.isOnHold("kept", token, 0, longHold)
	if l := b.holds("plain", other, 0); l.Holder.HoldPending || l.Holder.ExpiresIn > longTTL {
		f.Errorf("under the lease of a hold: %+v", l)
	}
	a.released(claim(plain, other))
	again := a.ask("kept")
	a.want(a.acquire(again), store.Held)
	a.queued(again, 1)
	a.granted(a.ask("third"))
	a.revoke(a.lease)
	b.free("third")
	b.isOnHold("kept", token, 0, longHold)
	b.want(b.check(again), store.Gone)
}

// handBackOfAHold: a grant that was not delivered is handed back at once, even if its lease died
// before. Other claims of this grant do not end it.
func handBackOfAHold(f *fixture) {
	a, b := f.pair()
	ask, waiter := a.askHold("k", longTTL, longHold), b.ask("k")
	token := a.granted(ask).Token
	b.queued(waiter, 1)
	a.revoke(ask.Lease)
	b.isOnHold("k", token, 1, longHold)
	a.notClaimable(ask, token, store.Expired)
	c := claim(ask, token)
	c.AtOnce, c.Lease = true, a.lease
	a.stands(a.release(c), store.Expired)
	b.isOnHold("k", token, 1, longHold)
	c.Lease = ask.Lease
	a.stands(a.release(c), store.Expired)
	grant := b.awaitNews(waiter)
	a.stands(a.release(c), store.UnknownToken)
	b.holds("k", grant.Token, 0)
}
