package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// downgradeCases test that a downgrade turns an exclusive lock into a share.
// Proves: promise 19
func downgradeCases() []testCase {
	return []testCase{
		sharing("a downgrade keeps the token and lets waiting readers in, up to the next writer", func(f *fixture, a, b *instance) {
			holder := a.ask("k")
			holder.Session, holder.Data = "s", []byte(`1`)
			token := a.granted(holder).Token
			r1, r2, writer, r3 := b.askShared("k", 0), a.askShared("k", 0), b.ask("k"), b.askShared("k", 0)
			b.queued(r1, 1)
			a.queued(r2, 2)
			b.queued(writer, 3)
			b.queued(r3, 4)
			v := a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			if v.Lock.Token != token || !v.Lock.Shared || v.Lock.Holder.Session != "s" || v.Lock.QueueLength != 2 {
				f.Errorf("downgraded: %+v", v.Lock)
			}
			l := b.shares("k", 2, token, b.awaitNews(r1).Token, a.awaitNews(r2).Token)
			if l.Holder.Session != "s" || l.Holder.Lease != a.lease {
				f.Errorf("got %+v", l)
			}
			f.sameJSON(l.Holder.Data, `1`)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds) // again
			b.shares("k", 2, token, l.Holders[1].Token, l.Holders[2].Token)
			a.released(claim(holder, token))
			b.shares("k", 2, l.Holders[1].Token, l.Holders[2].Token)
		}),
		sharing("a downgrade takes the limit that the waiters name, and a slot", func(f *fixture, a, b *instance) {
			holder, first, second := a.ask("k"), b.askShared("k", 2), b.askShared("k", 2)
			token := a.granted(holder).Token
			b.queued(first, 1)
			b.queued(second, 2)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			got := b.inSlot(b.awaitNews(first), 1)
			if l := b.shares("k", 1, token, got.Token); l.Limit != 2 || l.Holders[0].Slot != 0 {
				f.Errorf("got %+v", l)
			}
			if again := a.want(a.check(holder), store.Granted); again.Token != token || again.Slot != 0 {
				f.Errorf("found %+v", again)
			}
		}),
		sharing("a downgrade ignores the limit of waiters whose lease has expired", func(f *fixture, a, b *instance) {
			holder, lease := a.ask("k"), b.openLease(shortTTL)
			token := a.granted(holder).Token
			dying := b.askUnder(lease, "k")
			dying.Shared, dying.Limit = true, 2
			b.queued(dying, 1)
			b.awaitExpiry(lease, shortTTL)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			if other := b.granted(b.askShared("k", 0)); b.shares("k", 0, token, other.Token).Limit != 0 {
				f.Errorf("got %+v", b.get("k"))
			}
		}),
		sharing("a success after a downgrade of unknown outcome skips the skip-waiters", func(_ *fixture, a, b *instance) {
			holder, skip, plain := a.ask("k"), b.askSkip("k"), b.ask("k")
			token := a.granted(holder).Token
			b.queued(skip, 1)
			b.queued(plain, 2)
			other := b.askShared("k", 0)
			b.queued(other, 3)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			a.released(success(claim(holder, token), `5`))
			b.awaitSkip(skip, `5`)
			b.holds("k", b.awaitNews(plain).Token, 1)
			a.stands(a.release(success(claim(holder, token), `5`)), store.UnknownToken)
			b.awaitSkip(skip, `5`)
		}),
		sharing("a lock that is downgraded without waiters has no limit", func(_ *fixture, a, b *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			b.want(b.acquire(b.askShared("k", 2)), store.Held)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			b.want(b.acquire(b.askShared("k", 2)), store.LimitMismatch)
			b.shares("k", 0, token, b.granted(b.askShared("k", 0)).Token)
		}),
		sharing("a downgrade lets no reader overtake a writer", func(_ *fixture, a, b *instance) {
			holder, writer, reader := a.ask("k"), b.ask("k"), b.askShared("k", 0)
			token := a.granted(holder).Token
			b.queued(writer, 1)
			b.queued(reader, 2)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			b.shares("k", 2, token)
			a.released(claim(holder, token))
			b.holds("k", b.awaitNews(writer).Token, 1)
		}),
		sharing("a downgrade by another session, or with another token, changes nothing", func(_ *fixture, a, b *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			theirs := claim(holder, token)
			theirs.Lease = b.lease
			b.downgraded(theirs, store.Change{}, store.OtherSession)
			a.downgraded(claim(holder, token+1), store.Change{}, store.UnknownToken)
			if l := a.holds("k", token, 0); l.Shared {
				a.Errorf("got %+v", l)
			}
			a.released(claim(holder, token))
			a.downgraded(claim(holder, token), store.Change{}, store.Released)
			a.free("k")
		}),
		sharing("a downgraded bind:ttl lock keeps its lease and its MinHold", func(f *fixture, a, b *instance) {
			holder, reader := a.askTTL("k", longTTL), b.askShared("k", 0)
			holder.MinHold = longHold
			token := a.granted(holder).Token
			b.queued(reader, 1)
			v := b.downgraded(claim(holder, token), store.Change{TTL: 2 * longTTL}, store.Holds)
			if v.Lock.Holder.ExpiresIn <= longTTL {
				f.Errorf("downgraded: %+v", v.Lock)
			}
			tokens := []int64{token, b.awaitNews(reader).Token}
			b.released(claim(holder, token))
			if l := b.shares("k", 0, tokens...); !l.Holders[0].HoldPending {
				f.Errorf("got %+v", l)
			}
		}),
		sharing("a downgraded lock ends with its lease", func(_ *fixture, a, b *instance) {
			holder, reader, writer := a.ask("k"), b.askShared("k", 0), b.ask("k")
			token := a.granted(holder).Token
			b.queued(reader, 1)
			b.queued(writer, 2)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			other := b.awaitNews(reader).Token
			a.revoke(a.lease)
			b.shares("k", 1, other)
			b.released(claim(reader, other))
			b.holds("k", b.awaitNews(writer).Token, 0)
		}),
		sharing("the last served waiter of a cohort downgrades the lock", func(_ *fixture, a, b *instance) {
			token, line := a.cohort("k", 3)
			reader := b.askShared("k", 0)
			b.queued(reader, 3)
			a.adopted(store.Adoption{
				Change: store.Change{Key: "k", Token: token + 1, Lease: a.lease}, Served: []store.AttemptID{line[1].ID},
				Session: "second", AcquiredAt: time.Now(),
			})
			a.downgraded(store.Claim{Key: "k", Token: token + 1, Lease: a.lease}, store.Change{}, store.Holds)
			if l := b.shares("k", 2, token+1); l.Holder.Session != "second" {
				b.Errorf("got %+v", l)
			}
			a.released(store.Claim{Key: "k", Token: token + 1, Lease: a.lease})
			next := a.awaitNews(line[2]).Token
			if next <= token+1 {
				a.Errorf("token %d after %d", next, token+1)
			}
			a.released(claim(line[2], next))
			b.shares("k", 0, b.awaitNews(reader).Token)
		}),
		sharing("a signal to an exclusive holder stays with its share after the downgrade", func(f *fixture, a, b *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			b.signalled(stop("k", "x"), store.Holds)
			a.downgraded(claim(holder, token), store.Change{}, store.Holds)
			f.stopping(b.shares("k", 0, token), "x")
			if got := a.hasSignals(1, a.lease); got[0].Token != token {
				f.Errorf("signals %+v", got)
			}
		}),
	}
}
