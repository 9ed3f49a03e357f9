package storetest

import (
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// semaphoreCases test shares with a limit.
// Proves: promise 19
func semaphoreCases() []testCase {
	return []testCase{
		sharing("a key has at most as many holders as its limit, each in the smallest free slot", func(_ *fixture, a, b *instance) {
			var asks []store.Ask
			var tokens []int64
			for slot := range 3 {
				asks = append(asks, a.askShared("k", 3))
				tokens = append(tokens, a.inSlot(a.acquire(asks[slot]), slot).Token)
			}
			if l := b.want(b.acquire(b.askShared("k", 3)), store.Held).Lock; l.Limit != 3 || l.HoldersCount != 3 {
				b.Errorf("held by %+v", l)
			}
			a.released(claim(asks[1], tokens[1]))
			a.released(claim(asks[0], tokens[0]))
			b.inSlot(b.acquire(b.askShared("k", 3)), 0)
			b.inSlot(b.acquire(b.askShared("k", 3)), 1)
			b.want(b.acquire(b.askShared("k", 3)), store.Held)
			slots := []int{}
			for _, h := range a.get("k").Holders {
				slots = append(slots, h.Slot)
			}
			if !slices.Equal(slots, []int{2, 0, 1}) {
				a.Errorf("slots %v", slots)
			}
		}),
		sharing("a release lets in the first waiter, which gets the free slot", func(_ *fixture, a, b *instance) {
			holders := []store.Ask{a.askShared("k", 2), a.askShared("k", 2)}
			tokens := []int64{a.granted(holders[0]).Token, a.granted(holders[1]).Token}
			first, second := b.askShared("k", 2), b.askShared("k", 2)
			b.queued(first, 1)
			b.queued(second, 2)
			a.released(claim(holders[0], tokens[0]))
			got := b.inSlot(b.awaitNews(first), 0)
			b.want(b.check(second), store.Queued)
			b.inSlot(b.check(first), 0)
			b.inSlot(b.enqueue(first), 0)
			b.shares("k", 1, tokens[1], got.Token)
		}),
		sharing("places that are released together let in as many waiters, in their order", func(_ *fixture, a, b *instance) {
			var claims []store.Claim
			var line []store.Ask
			for slot := range 3 {
				holder := a.askShared("k", 3)
				claims = append(claims, claim(holder, a.inSlot(a.acquire(holder), slot).Token))
			}
			for i := range 4 {
				line = append(line, b.askShared("k", 3))
				b.queued(line[i], i+1)
			}
			claims[0], claims[2] = claims[2], claims[0]
			stale := claims[1]
			stale.Token++
			verdicts, err := a.Release(a.Context(), []store.Claim{claims[0], stale, claims[1], claims[1]})
			if err != nil {
				a.Fatal(err)
			}
			for i, want := range []store.ClaimStatus{store.Holds, store.UnknownToken, store.Holds} {
				if verdicts[i].Status != want {
					a.Errorf("claim %d: %d, want %d", i, verdicts[i].Status, want)
				}
			}
			if again := verdicts[3].Status; again == store.Holds || again == store.OtherSession {
				a.Errorf("a repeated claim: %d", again)
			}
			first, second := b.awaitNews(line[0]), b.awaitNews(line[1])
			if first.Slot+second.Slot != 3 || first.Slot*second.Slot != 2 || second.Token <= first.Token {
				a.Errorf("granted in the slots %d and %d under %d and %d", first.Slot, second.Slot, first.Token, second.Token)
			}
			b.queued(line[2], 1)
			b.queued(line[3], 2)
			b.shares("k", 2, claims[2].Token, first.Token, second.Token)
		}),
		sharing("waiters are granted together up to the limit", func(_ *fixture, a, b *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			var line []store.Ask
			for i := range 4 {
				line = append(line, b.askShared("k", 3))
				b.queued(line[i], i+1)
			}
			a.released(claim(holder, token))
			for slot := range 3 {
				b.inSlot(b.awaitNews(line[slot]), slot)
			}
			b.queued(line[3], 1)
		}),
		sharing("a shared ask with another limit is refused while there are shared holders", func(f *fixture, a, b *instance) {
			share := a.askShared("k", 3)
			token := a.granted(share).Token
			for _, limit := range []int{0, 2, 4} {
				for _, answer := range []store.Answer{b.acquire(b.askShared("k", limit)), b.enqueue(b.askShared("k", limit))} {
					if b.want(answer, store.LimitMismatch); answer.Lock.Limit != 3 || !answer.Lock.Shared || answer.Lock.Token != token {
						f.Errorf("refused with %+v", answer.Lock)
					}
				}
			}
			writer := b.ask("k")
			b.queued(writer, 1) // an exclusive ask has no limit
			b.shares("k", 1, token)
			b.want(b.cancel(writer), store.Gone)
			a.released(claim(share, token))
			b.granted(b.askShared("k", 4))
		}),
		sharing("a shared ask with another limit is refused while there are shared waiters", func(f *fixture, a, b *instance) {
			holder, writer, waiter := a.ask("k"), a.ask("k"), a.askShared("k", 0)
			token := a.granted(holder).Token
			a.queued(writer, 1)
			a.queued(waiter, 2)
			mismatch := b.want(b.enqueue(b.askShared("k", 5)), store.LimitMismatch)
			if l := mismatch.Lock; l.Limit != 0 || l.Shared || l.Token != token {
				f.Errorf("refused with %+v", l)
			}
			b.want(b.acquire(b.askShared("k", 5)), store.LimitMismatch)
			b.want(b.acquire(b.ask("k")), store.Held)
			a.want(a.cancel(waiter), store.Gone)
			other := b.askShared("k", 5)
			b.queued(other, 2)
			if l := a.get("k"); l.Limit != 5 {
				f.Errorf("got %+v", l)
			}
			a.want(a.enqueue(waiter), store.LimitMismatch)
		}),
		sharing("a waiter whose lease has expired does not count for the limit", func(f *fixture, a, b *instance) {
			a.granted(a.ask("k"))
			lease := a.openLease(shortTTL)
			expired := a.askUnder(lease, "k")
			expired.Shared, expired.Limit = true, 2
			a.enqueue(expired)
			a.awaitExpiry(lease, shortTTL)
			b.queued(b.askShared("k", 3), 1)
			if l := a.get("k"); l.Limit != 3 {
				f.Errorf("got %+v", l)
			}
			a.want(a.check(expired), store.Gone)
		}),
		sharing("a share whose lease has expired does not set the limit, and frees its slot", func(_ *fixture, a, b *instance) {
			a.granted(a.askSharedTTL("k", 1, shortTTL))
			b.poll("the end of the share", func() bool { return !b.get("k").Held })
			b.inSlot(b.acquire(b.askShared("k", 2)), 0)
		}),
		sharing("the slot of a dead holder goes to the first waiter", func(_ *fixture, a, b *instance) {
			dying := a.openLease(longTTL)
			share := a.askUnder(dying, "k")
			share.Shared, share.Limit = true, 2
			a.inSlot(a.acquire(share), 0)
			a.inSlot(a.acquire(a.askShared("k", 2)), 1)
			waiter := b.askShared("k", 2)
			b.queued(waiter, 1)
			a.revoke(dying)
			b.inSlot(b.awaitNews(waiter), 0)
		}),
		sharing("a newcomer does not overtake waiters when a slot becomes free", func(_ *fixture, a, b *instance) {
			share, writer := a.askShared("k", 2), b.ask("k")
			token := a.granted(share).Token
			b.queued(writer, 1)
			b.want(b.acquire(b.askShared("k", 2)), store.Held)
			waiter := b.askShared("k", 2)
			b.queued(waiter, 2)
			a.released(claim(share, token))
			token = b.awaitNews(writer).Token
			b.released(claim(writer, token))
			b.inSlot(b.awaitNews(waiter), 0)
		}),
		sharing("a share without a limit has slot zero", func(_ *fixture, a, _ *instance) {
			a.inSlot(a.acquire(a.askShared("k", 0)), 0)
			a.inSlot(a.acquire(a.askShared("k", 0)), 0)
		}),
	}
}

// inSlot checks the slot of a grant.
func (in *instance) inSlot(a store.Answer, slot int) store.Answer {
	in.Helper()
	if in.want(a, store.Granted); a.Slot != slot {
		in.Fatalf("slot %d, want %d: %+v", a.Slot, slot, a)
	}
	return a
}
