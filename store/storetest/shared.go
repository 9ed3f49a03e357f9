package storetest

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// sharing returns a case with two instances.
func sharing(rule string, run func(f *fixture, a, b *instance)) testCase {
	return testCase{rule, func(f *fixture) {
		a, b := f.pair()
		run(f, a, b)
	}}
}

// sharedCases test the queue, the tokens and the claims of shared locks.
// Proves: promise 19
func sharedCases() []testCase {
	return slices.Concat(sharedQueueCases(), sharedGrantCases(), sharedEndCases(), sharedOtherCases())
}

func sharedQueueCases() []testCase {
	return []testCase{
		sharing("shared holders have a key together, in the order of their tokens", func(_ *fixture, a, b *instance) {
			first, second, third := a.askShared("k", 0), b.askShared("k", 0), a.askShared("k", 0)
			tokens := []int64{a.granted(first).Token, b.granted(second).Token, a.granted(third).Token}
			b.shares("k", 0, tokens...)
			a.released(claim(first, tokens[0]))
			b.shares("k", 0, tokens[1:]...)
			a.released(claim(third, tokens[2]))
			b.shares("k", 0, tokens[1])
			b.released(claim(second, tokens[1]))
			b.free("k")
		}),
		sharing("a key is held either exclusively or by shares", func(_ *fixture, a, b *instance) {
			share := a.askShared("k", 0)
			token := a.granted(share).Token
			held := b.want(b.acquire(b.ask("k")), store.Held)
			b.showsShares(held.Lock, 0, token)
			a.released(claim(share, token))
			exclusive := b.ask("k")
			token = b.granted(exclusive).Token
			if l := a.want(a.acquire(a.askShared("k", 0)), store.Held).Lock; l.Shared || l.Token != token || l.HoldersCount != 0 {
				a.Errorf("held by %+v", l)
			}
			b.released(claim(exclusive, token))
			a.granted(a.askShared("k", 0))
		}),
		sharing("a writer waits for all readers", func(_ *fixture, a, b *instance) {
			first, second, writer := a.askShared("k", 0), b.askShared("k", 0), b.ask("k")
			tokens := []int64{a.granted(first).Token, b.granted(second).Token}
			b.showsShares(b.queued(writer, 1).Lock, 1, tokens...)
			a.released(claim(first, tokens[0]))
			b.want(b.check(writer), store.Queued)
			b.released(claim(second, tokens[1]))
			grant := b.awaitNews(writer)
			if l := a.holds("k", grant.Token, 0); l.Shared || grant.Token <= tokens[1] {
				a.Errorf("token %d after %v, %+v", grant.Token, tokens, l)
			}
		}),
		sharing("a newcomer does not overtake a writer that waits among readers", func(_ *fixture, a, b *instance) {
			reader, writer, late := a.askShared("k", 0), b.ask("k"), a.askShared("k", 0)
			token := a.granted(reader).Token
			b.queued(writer, 1)
			a.want(a.acquire(a.askShared("k", 0)), store.Held)
			a.queued(late, 2)
			a.released(claim(reader, token))
			token = b.awaitNews(writer).Token
			b.holds("k", token, 1)
			b.released(claim(writer, token))
			a.shares("k", 0, a.awaitNews(late).Token)
		}),
		sharing("the readers at the head are granted together, up to the next writer", func(_ *fixture, a, b *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			r1, r2, writer, r3 := a.askShared("k", 0), b.askShared("k", 0), a.ask("k"), b.askShared("k", 0)
			a.queued(r1, 1)
			b.queued(r2, 2)
			a.queued(writer, 3)
			b.queued(r3, 4)
			released := claim(holder, token)
			released.Traceparent = "by"
			a.released(released)
			g1, g2 := a.awaitNews(r1), b.awaitNews(r2)
			if g1.Token <= token || g2.Token <= g1.Token || g1.HandedBy != "by" || g2.HandedBy != "by" || len(g1.Cohort)+len(g2.Cohort) > 0 {
				a.Errorf("granted %+v and %+v after %d", g1, g2, token)
			}
			b.shares("k", 2, g1.Token, g2.Token)
			a.queued(writer, 1)
			b.queued(r3, 2)
			a.released(claim(r1, g1.Token))
			b.released(claim(r2, g2.Token))
			token = a.awaitNews(writer).Token
			a.released(claim(writer, token))
			b.shares("k", 0, b.awaitNews(r3).Token)
		}),
		sharing("readers behind a writer are let in when the writer leaves the queue", func(f *fixture, a, b *instance) {
			for name, leave := range map[string]func(writer store.Ask, lease store.LeaseID){
				"cancel":   func(writer store.Ask, _ store.LeaseID) { b.want(b.cancel(writer), store.Gone) },
				"withdraw": func(writer store.Ask, _ store.LeaseID) { b.withdraw(writer) },
				"revoke":   func(_ store.Ask, lease store.LeaseID) { b.revoke(lease) },
				"requeue": func(writer store.Ask, _ store.LeaseID) {
					writer.Lease = b.lease
					b.queued(writer, 1)
				},
			} {
				lease := b.openLease(longTTL)
				holder, writer, reader := a.askShared(name, 0), b.askUnder(lease, name), a.askShared(name, 0)
				token := a.granted(holder).Token
				b.queued(writer, 1)
				a.queued(reader, 2)
				leave(writer, lease)
				waiting := 0
				if name == "requeue" {
					waiting = 1
				}
				f.Log(name)
				a.shares(name, waiting, token, a.awaitNews(reader).Token)
			}
		}),
		sharing("readers behind a writer whose lease has expired are let in by a check", func(_ *fixture, a, b *instance) {
			lease := b.openLease(shortTTL)
			holder, writer, reader := a.askShared("k", 0), b.askUnder(lease, "k"), a.askShared("k", 0)
			token := a.granted(holder).Token
			b.enqueue(writer)
			a.enqueue(reader)
			b.awaitExpiry(lease, shortTTL)
			a.shares("k", 0, token, a.awaitGrant(reader).Token)
		}),
		sharing("a cohort ends at a shared waiter", func(_ *fixture, a, _ *instance) {
			holder := a.ask("k")
			token := a.granted(holder).Token
			first, second, shared, last := a.ask("k"), a.ask("k"), a.askShared("k", 0), a.ask("k")
			a.queued(first, 1)
			a.queued(second, 2)
			a.queued(shared, 3)
			a.queued(last, 4)
			a.released(claim(holder, token))
			token = a.wantCohort(first, second).Token
			a.released(store.Claim{Key: "k", Token: token + 1, Lease: a.lease, Served: []store.AttemptID{second.ID}})
			share := a.wantCohort(shared)
			a.released(claim(shared, share.Token))
			a.wantCohort(last)
		}),
		sharing("a success skips exclusive skip-waiters, and lets in the readers behind", func(_ *fixture, a, b *instance) {
			holder, skips, reader := a.ask("k"), b.ask("k"), b.askShared("k", 0)
			skips.Skip = true
			token := a.granted(holder).Token
			b.queued(skips, 1)
			b.queued(reader, 2)
			a.released(success(claim(holder, token), `1`))
			b.shares("k", 0, b.awaitNews(reader).Token)
			b.want(b.check(skips), store.Skipped)
		}),
	}
}

func sharedGrantCases() []testCase {
	return []testCase{
		sharing("a repeat with the same attempt id finds its share", func(f *fixture, a, b *instance) {
			first, second := a.askShared("k", 5), a.askShared("k", 5)
			a.granted(first)
			grant := a.granted(second)
			for _, again := range []store.Answer{a.acquire(second), a.enqueue(second), a.check(second), b.check(second)} {
				if a.want(again, store.Granted); again.Token != grant.Token || again.Slot != 1 || !again.AcquiredAt.Equal(grant.AcquiredAt) {
					f.Errorf("found %+v, want %+v", again, grant)
				}
			}
			if l := a.get("k"); l.HoldersCount != 2 {
				f.Errorf("held by %d", l.HoldersCount)
			}
		}),
		sharing("a repeated enqueue of a shared waiter keeps its position", func(_ *fixture, a, b *instance) {
			writer, reader := a.ask("k"), b.askShared("k", 0)
			token := a.granted(writer).Token
			b.queued(reader, 1)
			a.queued(a.ask("k"), 2)
			b.queued(reader, 1)
			a.released(claim(writer, token))
			grant := b.awaitNews(reader)
			if again := b.want(b.enqueue(reader), store.Granted); again.Token != grant.Token {
				b.Errorf("found %+v, want %+v", again, grant)
			}
		}),
		sharing("each share has its own session, owner, data and trace", func(f *fixture, a, b *instance) {
			first, second := a.askShared("k", 3), b.askTTL("k", longTTL)
			first.Session, first.Owner, first.Data, first.Traceparent = "s", "o", []byte(`1`), "t"
			second.Shared, second.Limit, second.Data = true, 3, []byte(`2`)
			a.granted(first)
			b.granted(second)
			l := a.get("k")
			if len(l.Holders) != 2 || l.Limit != 3 {
				f.Fatalf("got %+v", l)
			}
			h := l.Holders
			if h[0].Session != "s" || h[0].Owner != "o" || h[0].Traceparent != "t" || h[0].Instance != a.id.Instance ||
				h[0].Pod != a.id.Pod || h[0].Lease != a.lease || !h[0].Renewed || h[1].Session != "" || h[1].Renewed ||
				h[1].Instance != b.id.Instance || h[0].Slot != 0 || h[1].Slot != 1 || l.Holder.Session != "s" {
				f.Errorf("got %+v", l)
			}
			f.sameJSON(h[0].Data, `1`)
			f.sameJSON(h[1].Data, `2`)
			if l.NextEnd <= 0 || l.NextEnd > min(h[0].ExpiresIn, h[1].ExpiresIn) {
				f.Errorf("the next end is in %v: %+v", l.NextEnd, h)
			}
		}),
		sharing("a change of one share leaves the other shares alone", func(f *fixture, a, b *instance) {
			first, second := a.askShared("k", 0), b.askShared("k", 0)
			tokens := []int64{a.granted(first).Token, b.granted(second).Token}
			v := b.amended(claim(second, tokens[1]), store.Change{SetData: true, Data: []byte(`2`)}, store.Holds)
			if v.Lock.Token != tokens[1] || !v.Lock.Shared || v.Lock.HoldersCount != 2 || len(v.Lock.Holders) != 1 || v.Lock.Holders[0].Token != tokens[1] {
				f.Errorf("amended: %+v", v.Lock)
			}
			f.sameJSON(v.Lock.Holder.Data, `2`)
			l := b.shares("k", 0, tokens...)
			if l.Holders[0].Data != nil {
				f.Errorf("the other share has %s", l.Holders[0].Data)
			}
			f.sameJSON(l.Holders[1].Data, `2`)
			theirs := claim(first, tokens[0])
			theirs.Lease = b.lease
			b.amended(theirs, store.Change{}, store.OtherSession)
		}),
		sharing("a claim belongs to the share with its token, and the status of the last share that ended is kept", func(_ *fixture, a, b *instance) {
			first, second, third := a.askShared("k", 0), a.askShared("k", 0), b.askShared("k", 0)
			tokens := []int64{a.granted(first).Token, a.granted(second).Token, b.granted(third).Token}
			a.stands(a.release(claim(first, tokens[0]-1)), store.UnknownToken)
			a.stands(a.release(claim(first, tokens[2]+1)), store.UnknownToken)
			theirs := claim(third, tokens[2])
			theirs.Lease = a.lease
			a.stands(a.release(theirs), store.OtherSession)
			a.released(claim(first, tokens[0]))
			a.stands(a.release(claim(first, tokens[0])), store.UnknownToken)
			b.released(claim(third, tokens[2]))
			b.stands(b.release(claim(third, tokens[2])), store.Released)
			a.shares("k", 0, tokens[1])
			a.released(claim(second, tokens[1]))
			b.stands(b.release(claim(third, tokens[2])), store.Released)
			if l := a.get("k"); l.Held || l.Token != tokens[2] || l.Expired {
				a.Errorf("got %+v", l)
			}
		}),
		sharing("a read returns at most a hundred holders, and an answer at most eight", func(f *fixture, a, b *instance) {
			const many = store.HoldersShown + 3
			var tokens []int64
			for range many {
				tokens = append(tokens, a.granted(a.askShared("k", 0)).Token)
			}
			listed := b.lists(store.Query{Limit: 1}, "k")[0]
			for _, l := range []store.Lock{b.get("k"), listed} {
				if l.HoldersCount != many || len(l.Holders) != store.HoldersShown || l.Holders[store.HoldersShown-1].Token != tokens[store.HoldersShown-1] {
					f.Errorf("%d of %d holders", len(l.Holders), l.HoldersCount)
				}
			}
			writer := b.ask("k")
			for _, l := range []store.Lock{b.want(b.acquire(b.ask("k")), store.Held).Lock, b.queued(writer, 1).Lock} {
				if l.HoldersCount != many || len(l.Holders) != store.BlockersShown || l.Token != tokens[0] {
					f.Errorf("%d of %d holders", len(l.Holders), l.HoldersCount)
				}
			}
		}),
	}
}

// askShared returns a new attempt to get a share under the instance's long lease.
func (in *instance) askShared(key string, limit int) store.Ask {
	ask := in.ask(key)
	ask.Shared, ask.Limit = true, limit
	return ask
}

// askSharedTTL returns a new attempt to get a bind:ttl share.
func (in *instance) askSharedTTL(key string, limit int, ttl time.Duration) store.Ask {
	ask := in.askTTL(key, ttl)
	ask.Shared, ask.Limit = true, limit
	return ask
}

// shares checks the tokens of a key's shares, and how many wait for it.
func (in *instance) shares(key string, waiting int, tokens ...int64) store.Lock {
	in.Helper()
	l := in.get(key)
	in.showsShares(l, waiting, tokens...)
	return l
}

func (in *instance) showsShares(l store.Lock, waiting int, tokens ...int64) {
	in.Helper()
	var got []int64
	for _, h := range l.Holders {
		got = append(got, h.Token)
	}
	if !l.Held || !l.Shared || l.HoldersCount != len(tokens) || !slices.Equal(got, tokens) || l.QueueLength != waiting || l.Token != tokens[0] {
		in.Fatalf("shared %v by %d under %v with %d waiting, want %v with %d waiting: %+v",
			l.Shared, l.HoldersCount, got, l.QueueLength, tokens, waiting, l)
	}
}
