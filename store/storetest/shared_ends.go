package storetest

import (
	"slices"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// sharedEndCases test the ends of shares other than a plain release.
func sharedEndCases() []testCase {
	return []testCase{
		sharing("a revoked lease ends its own shares only", func(_ *fixture, a, b *instance) {
			dying, writer := a.openLease(longTTL), b.ask("k")
			gone, stays := a.askUnder(dying, "k"), b.askShared("k", 0)
			gone.Shared = true
			tokens := []int64{a.granted(gone).Token, b.granted(stays).Token}
			b.queued(writer, 1)
			a.revoke(dying)
			b.shares("k", 1, tokens[1])
			a.lost(a.release(claim(gone, tokens[0])))
			b.released(claim(stays, tokens[1]))
			b.holds("k", b.awaitNews(writer).Token, 0)
		}),
		sharing("a writer is let in when the last reader is dead", func(_ *fixture, a, b *instance) {
			a.granted(a.askShared("k", 0))
			a.granted(a.askShared("k", 0))
			writer := b.ask("k")
			b.queued(writer, 1)
			a.revoke(a.lease)
			b.holds("k", b.awaitNews(writer).Token, 0)
		}),
		sharing("a share whose lease has expired is reaped when an ask needs its slot", func(_ *fixture, a, b *instance) {
			lease := a.openLease(shortTTL)
			dying, living := a.askUnder(lease, "k"), b.askShared("k", 0)
			dying.Shared = true
			first := a.acquire(dying)
			token := b.granted(living).Token
			a.awaitExpiry(lease, shortTTL)
			writer := b.ask("k")
			b.queued(writer, 1)
			b.shares("k", 1, token)
			b.released(claim(living, token))
			b.holds("k", b.awaitNews(writer).Token, 0)
			a.lost(a.release(claim(dying, first.Token)))
		}),
		sharing("a key whose shares have expired is free, and shows that the last one expired", func(f *fixture, a, b *instance) {
			share := a.askSharedTTL("k", 0, shortTTL)
			token := a.granted(share).Token
			b.poll("the end of the share", func() bool { return !b.get("k").Held })
			if l := b.get("k"); !l.Expired || l.Token != token || l.Shared || l.HoldersCount != 0 {
				f.Errorf("got %+v", l)
			}
			a.stands(a.release(claim(share, token)), store.Expired)
			if next := b.granted(b.ask("k")); next.Token <= token {
				f.Errorf("token %d after %d", next.Token, token)
			}
		}),
		sharing("a bind:ttl share is extended and released by key and token", func(f *fixture, a, b *instance) {
			share, other := a.askSharedTTL("k", 0, longTTL), a.askShared("k", 0)
			tokens := []int64{a.granted(share).Token, a.granted(other).Token}
			v := b.amended(claim(share, tokens[0]), store.Change{TTL: 2 * longTTL}, store.Holds)
			if v.Lock.Holder.ExpiresIn <= longTTL {
				f.Errorf("ends in %v", v.Lock.Holder.ExpiresIn)
			}
			b.released(claim(share, tokens[0]))
			b.shares("k", 0, tokens[1])
		}),
		sharing("a bind:ttl share is not released with an outcome", func(_ *fixture, a, b *instance) {
			share, other := a.askSharedTTL("k", 0, longTTL), a.askShared("k", 0)
			tokens := []int64{a.granted(share).Token, a.granted(other).Token}
			for _, outcome := range []store.ReleaseOutcome{store.Success, store.Failure} {
				c := claim(share, tokens[0])
				c.Outcome = outcome
				b.stands(b.release(c), store.IsShare)
				b.shares("k", 0, tokens...)
			}
			b.released(claim(share, tokens[0]))
		}),
		sharing("a bind:ttl waiter gets a share with a lease of its own", func(_ *fixture, a, b *instance) {
			writer, reader := a.ask("k"), b.askSharedTTL("k", 0, longTTL)
			reader.Lease = b.lease
			token := a.granted(writer).Token
			b.queued(reader, 1)
			a.released(claim(writer, token))
			token = b.awaitNews(reader).Token
			b.revoke(b.lease)
			a.shares("k", 0, token)
			a.released(claim(reader, token))
		}),
		sharing("a released share keeps its slot until its MinHold is over", func(f *fixture, a, b *instance) {
			share, other := a.askShared("k", 2), b.askShared("k", 2)
			share.MinHold = longHold
			tokens := []int64{a.granted(share).Token, b.granted(other).Token}
			a.released(claim(share, tokens[0]))
			l := b.shares("k", 0, tokens...)
			if !l.Holders[0].HoldPending || l.Holders[1].HoldPending {
				f.Errorf("got %+v", l)
			}
			a.stands(a.release(claim(share, tokens[0])), store.Released)
			b.want(b.acquire(b.askShared("k", 2)), store.Held)
			waiter := b.askShared("k", 2)
			b.queued(waiter, 1)
			a.revoke(a.lease)
			b.want(b.check(waiter), store.Queued)
			b.released(claim(other, tokens[1]))
			if got := b.awaitNews(waiter); got.Slot != 1 {
				f.Errorf("slot %d", got.Slot)
			}
		}),
		sharing("a dead share keeps its slot until its MinHold is over, and then a waiter is let in", func(_ *fixture, a, b *instance) {
			share, writer := a.askShared("k", 0), b.ask("k")
			share.MinHold = 2 * shortTTL
			token := a.granted(share).Token
			b.queued(writer, 1)
			a.revoke(a.lease)
			grant := b.awaitGrant(writer)
			a.lost(a.release(claim(share, token)))
			b.holds("k", grant.Token, 0)
		}),
		sharing("waiters are notified when only a hold keeps a share", func(_ *fixture, a, b *instance) {
			share, waiter := a.askHold("k", longTTL, longHold), b.ask("k")
			share.Shared = true
			a.granted(share)
			b.queued(waiter, 1)
			a.revoke(share.Lease)
			if !b.Traits().Polls {
				b.awaitAnyNews(waiter)
			}
			b.want(b.check(waiter), store.Queued)
		}),
		sharing("a repeat after the death of its share waits until the hold of this share is over", func(f *fixture, a, b *instance) {
			first := a.askHold("k", longTTL, longHold)
			first.Shared, first.Limit = true, 3
			token := a.granted(first).Token
			a.revoke(first.Lease)
			again, behind := first, b.askShared("k", 3)
			again.Lease, again.MinHold = a.lease, 0
			for range 2 {
				a.want(a.acquire(again), store.Held)
			}
			for range 2 {
				if l := a.queued(again, 1).Lock; !l.Shared || !l.Holder.HoldPending || l.Token != token {
					f.Errorf("queued behind its hold: %+v", l)
				}
			}
			b.queued(behind, 2)
			if l := a.want(a.check(again), store.Queued).Lock; !l.Shared || len(l.Holders) != 1 || l.Token != token {
				f.Errorf("queued behind its hold: %+v", l)
			}
			b.gaveUp(b.cancel(behind), 2)
			b.shares("k", 1, token)
			a.gaveUp(a.cancel(again), 1)
			b.shares("k", 0, token)
			a.queued(again, 1)
			b.queued(behind, 2)
			a.withdraw(again)
			b.shares("k", 0, b.awaitNews(behind).Token)
		}),
		sharing("a repeat that waited for the hold of its dead share gets exactly one share", func(_ *fixture, a, b *instance) {
			first := a.askHold("k", longTTL, 2*shortTTL)
			first.Shared, first.Limit = true, 3
			token := a.granted(first).Token
			a.revoke(first.Lease)
			again, behind := first, b.askShared("k", 3)
			again.Lease, again.MinHold = a.lease, 0
			a.queued(again, 1)
			b.queued(behind, 2)
			second := a.awaitGrant(again)
			a.sameGrant(second, a.granted(again))
			b.shares("k", 0, second.Token, b.awaitGrant(behind).Token)
			a.lost(a.release(claim(first, token)))
		}),
		sharing("a withdrawal ends only the share of its attempt", func(_ *fixture, a, b *instance) {
			first, second, writer := a.askShared("k", 0), a.askShared("k", 0), b.ask("k")
			first.MinHold = longHold
			a.granted(first)
			token := a.granted(second).Token
			b.queued(writer, 1)
			a.withdraw(first)
			b.shares("k", 1, token)
			a.withdraw(first) // a repeat
			a.withdraw(second)
			b.holds("k", b.awaitNews(writer).Token, 0)
		}),
		sharing("a cancel that finds a share leaves it held", func(f *fixture, a, b *instance) {
			writer, reader := a.ask("k"), b.askShared("k", 2)
			token := a.granted(writer).Token
			b.queued(reader, 1)
			a.released(claim(writer, token))
			found := b.want(b.cancel(reader), store.Granted)
			b.shares("k", 0, found.Token)
			if found.Slot != 0 {
				f.Errorf("found %+v", found)
			}
		}),
		sharing("a bind:ttl share that two instances received is not handed back by either", func(_ *fixture, a, b *instance) {
			share := a.askSharedTTL("k", 0, longTTL)
			token := a.granted(share).Token
			b.want(b.acquire(share), store.Granted)
			undelivered := claim(share, token)
			undelivered.Undelivered = true
			a.stands(a.release(undelivered), store.OtherSession)
			b.shares("k", 0, token)
		}),
		sharing("a sweep reaps only shares that have expired", func(_ *fixture, a, b *instance) {
			token := a.granted(a.askShared("k", 0)).Token
			a.granted(a.askSharedTTL("k", 0, shortTTL))
			a.poll("the end of the share", func() bool { return a.get("k").HoldersCount == 1 })
			if err := b.Sweep(b.ctx()); err != nil {
				a.Fatal(err)
			}
			b.shares("k", 0, token)
		}),
	}
}

// sharedOtherCases test signals, events, moves and counts of shared locks.
func sharedOtherCases() []testCase {
	return []testCase{
		sharing("a stop with a token is for one holder, and a stop without one is for all", func(f *fixture, a, b *instance) {
			first, second, third := a.askShared("k", 0), a.askShared("k", 0), b.askSharedTTL("k", 0, longTTL)
			tokens := []int64{a.granted(first).Token, a.granted(second).Token, b.granted(third).Token}
			one := stop("k", "one")
			one.Token = tokens[1]
			b.signalled(one, store.Holds)
			if l := b.shares("k", 0, tokens...); l.Stopping != nil || l.Holders[0].Stopping != nil || l.Holders[1].Stopping == nil || l.Holders[2].Stopping != nil {
				f.Errorf("got %+v", l)
			}
			if got := a.hasSignals(1, a.lease); got[0].Token != tokens[1] {
				f.Errorf("signals %+v", got)
			}
			b.signalled(stop("k", "all"), store.Holds)
			b.signalled(stop("k", "all"), store.Holds) // a repeat
			for _, h := range b.shares("k", 0, tokens...).Holders {
				if h.Stopping == nil || *h.Stopping.Reason != "all" {
					f.Errorf("got %+v", h)
				}
			}
			got := a.hasSignals(2, a.lease)
			slices.SortFunc(got, func(a, b store.Signal) int { return int(a.Token - b.Token) })
			if got[0].Token != tokens[0] || got[1].Token != tokens[1] || *got[1].Reason != "all" {
				f.Errorf("signals %+v", got)
			}
			unknown := stop("k", "none")
			unknown.Token = tokens[2] + 1
			b.signalled(unknown, store.UnknownToken)
			f.stopping(b.amended(claim(third, tokens[2]), store.Change{}, store.Holds).Lock, "all")
		}),
		sharing("a break with a token ends one bind:ttl share, and a break without one ends all", func(_ *fixture, a, b *instance) {
			first, second, session := a.askSharedTTL("k", 0, longTTL), a.askSharedTTL("k", 0, longTTL), b.askShared("k", 0)
			tokens := []int64{a.granted(first).Token, a.granted(second).Token, b.granted(session).Token}
			b.signalled(store.Signal{Kind: store.Break, Key: "k", Token: tokens[1]}, store.Holds)
			b.shares("k", 0, tokens[0], tokens[2])
			b.signalled(store.Signal{Kind: store.Break, Key: "k"}, store.Holds)
			b.shares("k", 0, tokens[2])
			if got := b.hasSignals(1, b.lease); got[0].Token != tokens[2] || got[0].Kind != store.Break {
				b.Errorf("signals %+v", got)
			}
			a.lost(a.release(claim(first, tokens[0])))
		}),
		sharing("a break of all bind:ttl shares lets in the first waiter that fits, and does not break its grant", func(_ *fixture, a, b *instance) {
			a.granted(a.askSharedTTL("k", 2, longTTL))
			a.granted(a.askSharedTTL("k", 2, longTTL))
			first, second := b.askShared("k", 2), b.askShared("k", 2)
			b.queued(first, 1)
			b.queued(second, 2)
			a.signalled(store.Signal{Kind: store.Break, Key: "k"}, store.Holds)
			b.shares("k", 0, b.awaitNews(first).Token, b.awaitNews(second).Token)
		}),
		sharing("watchers are notified of each share by its token", func(_ *fixture, a, _ *instance) {
			a.watch(a.lease, "k")
			first, second := a.askShared("k", 0), a.askShared("k", 0)
			tokens := []int64{a.granted(first).Token, a.granted(second).Token}
			a.hears("k", event(store.EventAcquired, tokens[0]), event(store.EventAcquired, tokens[1]))
			g := stop("k", "x")
			g.Token = tokens[0]
			a.signalled(g, store.Holds)
			a.hears("k", event(store.EventStopping, tokens[0]))
			a.released(claim(first, tokens[0]))
			a.hears("k", event(store.EventReleased, tokens[0]))
			dying := a.openLease(longTTL)
			third := a.askUnder(dying, "k")
			third.Shared = true
			tokens = append(tokens, a.granted(third).Token)
			a.revoke(dying)
			a.hears("k", event(store.EventAcquired, tokens[2]), event(store.EventExpired, tokens[2]))
		}),
		sharing("shares are moved by token or attempt, and waiters by attempt", func(f *fixture, a, b *instance) {
			first, second, stays, waiter := a.askShared("k", 0), a.askShared("k", 0), a.askShared("k", 0), a.ask("k")
			tokens := []int64{a.granted(first).Token, a.granted(second).Token, a.granted(stays).Token}
			a.queued(waiter, 1)
			held := a.heldUnder("k").Grants
			slices.SortFunc(held, func(a, b store.HeldGrant) int { return int(a.Token - b.Token) })
			if len(held) != 3 || held[1].Token != tokens[1] || held[1].Lease != a.lease {
				f.Errorf("held %+v", held)
			}
			to := a.openLease(longTTL)
			byToken := store.Move{Attempt: store.Attempt{Key: "k"}, Token: tokens[0]}
			a.moved(a.lease, to, byToken, store.Holds)
			a.moved(a.lease, to, store.Move{Attempt: second.Attempt}, store.Holds)
			a.moved(a.lease, to, store.Move{Attempt: waiter.Attempt}, store.Holds)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, Token: tokens[2] + 1}, store.UnknownToken)
			a.revoke(a.lease)
			l := b.shares("k", 1, tokens[0], tokens[1])
			if l.Holders[0].Lease != to || l.Holders[1].Lease != to {
				f.Errorf("got %+v", l)
			}
			a.moved(a.lease, to, byToken, store.Holds) // a repeat
			a.released(store.Claim{Key: "k", Token: tokens[0], Lease: to})
			a.released(store.Claim{Key: "k", Token: tokens[1], Lease: to})
			a.awaitGrant(waiter)
		}),
		sharing("a moved share keeps its signals, and those of other shares stay", func(f *fixture, a, _ *instance) {
			first, second, to := a.askShared("k", 0), a.askShared("k", 0), a.openLease(longTTL)
			tokens := []int64{a.granted(first).Token, a.granted(second).Token}
			a.signalled(stop("k", "x"), store.Holds)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: tokens[0]}, store.Holds)
			if got := a.hasSignals(1, to); got[0].Token != tokens[0] {
				f.Errorf("moved %+v", got)
			}
			if got := a.hasSignals(1, a.lease); got[0].Token != tokens[1] {
				f.Errorf("left %+v", got)
			}
		}),
		sharing("each shared holder is counted as a held lock", func(f *fixture, a, b *instance) {
			a.granted(a.askShared("job:1", 0))
			a.granted(a.askShared("job:1", 0))
			b.granted(b.askShared("job:1", 0))
			a.queued(a.ask("job:1"), 1)
			b.granted(b.ask("job:2"))
			if of := a.typeLine("job"); of.Held != 4 || of.Shared != 3 || of.Waiting != 1 {
				f.Errorf("by type %+v", of)
			}
			if of := a.podLine(a.id.Pod); of.Held != 2 || of.Shared != 2 {
				f.Errorf("by pod %+v", of)
			}
		}),
		sharing("List by instance returns locks with a holder of this instance", func(_ *fixture, a, b *instance) {
			a.granted(a.askShared("both", 0))
			b.granted(b.askShared("both", 0))
			b.granted(b.askShared("theirs", 0))
			if l := a.lists(store.Query{Limit: 9, Instance: b.id.Instance}, "both", "theirs")[0]; l.HoldersCount != 2 {
				a.Errorf("listed %+v", l)
			}
			a.lists(store.Query{Limit: 9, Instance: a.id.Instance}, "both")
		}),
		sharing("the shares of a stopped instance are reaped", func(_ *fixture, a, b *instance) {
			a.granted(a.askShared("k", 0))
			bound := a.askSharedTTL("k", 0, longTTL)
			token := a.granted(bound).Token
			if err := b.ReapInstance(b.ctx(), a.id.Instance); err != nil {
				a.Fatal(err)
			}
			b.shares("k", 0, token)
		}),
	}
}

// lost checks the answer to a claim on a share that ended without a release. A store may have
// forgotten the share.
func (in *instance) lost(v store.Verdict) {
	in.Helper()
	if v.Status != store.Expired && v.Status != store.UnknownToken {
		in.Fatalf("claim status %s of a lost share: %+v", standing(v.Status), v)
	}
}
