package storetest

import (
	"fmt"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/store"
)

func coordinationRaceCases() []testCase {
	return []testCase{
		{"at most one holder in a storm with outcomes", stormWithOutcomes},
		{"a concurrent success, enqueue and cancel give each waiter one outcome", successMeetsQueue},
		{"a concurrent success and reap of a skipped waiter agree", successMeetsReap},
		{"a concurrent stop and release leave the next holder alone", stopMeetsRelease},
		{"a concurrent stop and release with a hold leave no signal for the next holder", stopMeetsPendingHold},
		{"a concurrent break and release end only one grant", breakMeetsRelease},
		{"a concurrent release with a hold, renewal and reap keep the hold", holdMeetsReap},
		{"a grant during the start of a watch is either read or reported", watchMeetsGrant},
	}
}

func stormWithOutcomes(f *fixture) { stormOf(f, true) }

// successMeetsQueue: while the holder succeeds, one skip-waiter leaves, another skip-waiter comes,
// and so does a waiter that wants the lock. Each waiter ends in one way. The key is never free,
// because plain waits for it.
func successMeetsQueue(f *fixture) {
	a, b := f.pair()
	f.rounds(200, func(round int) {
		key := fmt.Sprintf("success:%d", round)
		holder := a.ask(key)
		stays, leaves, comes := b.askSkip(key), b.askSkip(key), a.askSkip(key)
		plain, late := b.ask(key), a.ask(key)
		token := a.granted(holder).Token
		b.queued(stays, 1)
		b.queued(leaves, 2)
		b.queued(plain, 3)
		var left, came, lateCame store.Answer
		var done atomic.Bool
		f.together(
			func() error {
				defer done.Store(true)
				_, err := a.Release(f.Context(), []store.Claim{success(claim(holder, token), `1`)})
				return err
			},
			func() error { return keep(&left)(b.Cancel(f.Context(), []store.Attempt{leaves.Attempt})) },
			func() error { return keep(&came)(a.Enqueue(f.Context(), []store.Ask{comes})) },
			func() error { return keep(&lateCame)(a.Enqueue(f.Context(), []store.Ask{late})) },
			func() error {
				for looks := 0; looks < 3 || !done.Load(); looks++ {
					locks, err := b.Get(f.Context(), []string{key})
					if err != nil {
						return err
					}
					if !locks[0].Held {
						return fmt.Errorf("free although a waiter is queued: %+v", locks[0])
					}
				}
				return nil
			},
		)
		b.skipped(b.check(stays), `1`)
		b.skipped(b.cancel(stays), `1`)
		if left.Outcome == store.Skipped {
			b.skipped(left, `1`)
		} else {
			b.want(left, store.Gone)
		}
		b.want(b.check(leaves), store.Gone)
		b.want(b.check(stays), store.Gone)
		grant := b.awaitNews(plain)
		a.want(lateCame, store.Queued)
		// The new skip-waiter is skipped, or it came after the success and waits for the next
		// holder.
		a.want(came, store.Queued)
		waiting := 1
		if found := a.check(comes); found.Outcome == store.Skipped {
			a.skipped(a.cancel(comes), `1`)
		} else {
			a.want(found, store.Queued)
			waiting = 2
		}
		b.holds(key, grant.Token, waiting)
		b.released(success(claim(plain, grant.Token), `2`))
		if waiting == 2 {
			a.skipped(a.cancel(comes), `2`)
		}
		a.released(claim(late, a.awaitNews(late).Token))
		a.free(key)
	})
}

// keep stores the single answer of an operation.
func keep(answer *store.Answer) func([]store.Answer, error) error {
	return func(answers []store.Answer, err error) error {
		if err == nil {
			*answer = answers[0]
		}
		return err
	}
}

// successMeetsReap reaps a skip-waiter's lease while the waiter is skipped. The store forgets this
// waiter, and the waiter behind is granted.
func successMeetsReap(f *fixture) {
	a, b := f.pair()
	f.rounds(200, func(round int) {
		key := fmt.Sprintf("reaped:%d", round)
		holder, plain := a.ask(key), b.ask(key)
		skip := b.askUnder(b.openLease(longTTL), key)
		skip.Skip = true
		token := a.granted(holder).Token
		b.queued(skip, 1)
		b.queued(plain, 2)
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{success(claim(holder, token), `1`)})
				return err
			},
			func() error { return b.Revoke(f.Context(), []store.LeaseID{skip.Lease}) },
		)
		grant := b.awaitNews(plain)
		b.want(b.check(skip), store.Gone)
		b.holds(key, grant.Token, 0)
		b.released(claim(plain, grant.Token))
	})
}

// stopMeetsRelease: the next holder is under the same lease, and the stop is not for it.
func stopMeetsRelease(f *fixture) {
	a, b := f.pair()
	f.rounds(200, func(round int) {
		key := fmt.Sprintf("stop:%d", round)
		holder, next := a.ask(key), a.ask(key)
		token := a.granted(holder).Token
		waits := round%2 == 0
		if waits {
			a.queued(next, 1)
		}
		s := stop(key, "x")
		s.Token = token
		var stood []store.ClaimStatus
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, token)})
				return err
			},
			func() (err error) {
				stood, err = b.Signal(f.Context(), []store.Signal{s})
				return err
			},
		)
		if got := stood[0]; got != store.Holds && got != store.UnknownToken {
			f.Fatalf("claim status %s", standing(got))
		}
		var grant store.Answer
		if waits {
			grant = a.awaitNews(next)
		} else {
			grant = a.granted(next)
		}
		if l := a.holds(key, grant.Token, 0); l.Stopping != nil {
			f.Fatalf("the next holder is stopping: %+v", l)
		}
		a.noSignalFor(grant.Token, a.lease)
		a.released(claim(next, grant.Token))
	})
}

// stopMeetsPendingHold: in either order, a stop of the pending hold is not shown to the next
// holder.
func stopMeetsPendingHold(f *fixture) {
	a, b := f.pair()
	f.rounds(100, func(round int) {
		key := fmt.Sprintf("standing:%d", round)
		holder, next := a.askHold(key, longTTL, longHold), b.ask(key)
		token := a.granted(holder).Token
		b.queued(next, 1)
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, token)})
				return err
			},
			func() error {
				_, err := b.Signal(f.Context(), []store.Signal{stop(key, "x")})
				return err
			},
		)
		b.isOnHold(key, token, 1, longHold)
		b.signalled(store.Signal{Kind: store.Break, Key: key, Token: token}, store.Holds)
		grant := b.awaitNews(next)
		if l := b.holds(key, grant.Token, 0); l.Stopping != nil {
			f.Fatalf("the next holder is stopping: %+v", l)
		}
		b.noSignalFor(grant.Token, b.lease, holder.Lease)
		b.released(claim(next, grant.Token))
	})
}

// breakMeetsRelease breaks a bind:ttl lock while its holder releases it and two wait. Only the
// holder's grant ends.
func breakMeetsRelease(f *fixture) {
	a, b := f.pair()
	f.rounds(200, func(round int) {
		key := fmt.Sprintf("break:%d", round)
		holder := a.askTTL(key, longTTL)
		token := a.granted(holder).Token
		first, second := b.ask(key), a.ask(key)
		first.TTL = longTTL
		b.queued(first, 1)
		a.queued(second, 2)
		s := store.Signal{Kind: store.Break, Key: key, Token: token}
		var verdict store.Verdict
		var stood store.ClaimStatus
		f.together(
			func() error {
				verdicts, err := a.Release(f.Context(), []store.Claim{claim(holder, token)})
				if err == nil {
					verdict = verdicts[0]
				}
				return err
			},
			func() error {
				standings, err := b.Signal(f.Context(), []store.Signal{s})
				if err == nil {
					stood = standings[0]
				}
				return err
			},
		)
		if (verdict.Status == store.Holds) == (stood == store.Holds) {
			f.Fatalf("release: claim status %s, break: claim status %s", standing(verdict.Status), standing(stood))
		}
		grant := b.awaitNews(first)
		b.holds(key, grant.Token, 1)
		b.released(claim(first, grant.Token))
		a.released(claim(second, a.awaitNews(second).Token))
	})
}

// holdMeetsReap starts many holds while their locks are released, renewed and reaped, and then
// waits for all of them.
func holdMeetsReap(f *fixture) {
	a, b := f.pair()
	const n = 40
	firsts, waiters := make([]store.Answer, n), make([]store.Ask, n)
	for i := range n {
		key := fmt.Sprintf("hold:%d", i)
		holder := a.askHold(key, longTTL, shortHoldTime)
		firsts[i], waiters[i] = a.granted(holder), b.ask(key)
		b.queued(waiters[i], 1)
		f.together(
			func() error {
				_, err := a.Release(f.Context(), []store.Claim{claim(holder, firsts[i].Token)})
				return err
			},
			func() error {
				_, err := a.Renew(f.Context(), []store.LeaseID{holder.Lease, a.lease})
				return err
			},
			func() error {
				if i%2 == 0 {
					return nil
				}
				return a.Revoke(f.Context(), []store.LeaseID{holder.Lease})
			},
		)
		if v := a.release(claim(holder, firsts[i].Token)); v.Status == store.Holds {
			f.Fatal("released twice")
		}
	}
	for i, waiter := range waiters {
		grant := b.awaitGrant(waiter)
		b.after(firsts[i], shortHoldTime, grant)
		b.released(claim(waiter, grant.Token))
	}
}

// watchMeetsGrant: a grant is seen by the watch or by a read that follows its start.
func watchMeetsGrant(f *fixture) {
	f.watchPair(func(in, by *instance) {
		f.rounds(100, func(round int) {
			ask := by.ask(fmt.Sprintf("watch:%d", round))
			var grant store.Answer
			var read store.Lock
			f.together(
				func() error { return keep(&grant)(by.Acquire(f.Context(), []store.Ask{ask})) },
				func() error {
					if err := in.Watch(f.Context(), []string{ask.Key}, in.lease); err != nil {
						return err
					}
					locks, err := in.Get(f.Context(), []string{ask.Key})
					if err == nil {
						read = locks[0]
					}
					return err
				},
			)
			by.want(grant, store.Granted)
			if !read.Held {
				in.hears(ask.Key, event(store.EventAcquired, grant.Token))
			}
			in.unwatch(ask.Key)
			by.released(claim(ask, grant.Token))
		})
	})
}
