package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 9
func repeatCases() []testCase {
	return []testCase{
		{"a repeated acquire finds its grant", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			in.sameGrant(in.granted(ask), in.acquire(ask))
			in.holds("k", in.acquire(ask).Token, 0)
		}},
		{"a repeated enqueue finds its grant", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			first := in.want(in.enqueue(ask), store.Granted)
			in.sameGrant(first, in.enqueue(ask))
			in.sameGrant(first, in.check(ask))
			in.sameGrant(first, in.acquire(ask))
		}},
		{"a repeated bind:ttl acquire finds its grant from any instance, and does not extend it", func(f *fixture) {
			a, b := f.pair()
			ask := a.askTTL("k", 30*time.Second)
			first := a.granted(ask)
			again := ask
			again.TTL = longTTL
			a.sameGrant(first, a.acquire(again))
			b.sameGrant(first, b.acquire(again))
		}},
		{"a bind:ttl grant is found again after the end of the lease under which it was asked for", func(f *fixture) {
			in := f.instance("a")
			ask := in.askUnder(in.openLease(longTTL), "k")
			ask.TTL = longTTL
			first := in.want(in.enqueue(ask), store.Granted)
			in.revoke(ask.Lease)
			in.sameGrant(first, in.enqueue(ask))
			in.sameGrant(first, in.acquire(ask))
			another := in.ask("another")
			another.TTL, another.Lease = longTTL, ask.Lease
			in.granted(another) // an acquire does not check this lease
			in.want(in.enqueue(in.askUnder(ask.Lease, "k")), store.LeaseLost)
		}},
		{"a bind:ttl lock that two instances received is not handed back by either", func(f *fixture) {
			a, b := f.pair()
			ask := a.askTTL("k", longTTL)
			token := a.granted(ask).Token
			b.granted(ask)
			f.nobodyWithdraws(ask, token, a, b)
			b.released(store.Claim{Key: "k", Token: token})
			a.free("k")
		}},
		{"an enqueue, a check and a cancel that find a bind:ttl grant count as delivered", func(f *fixture) {
			a, b := f.pair()
			for name, again := range map[string]func(ask store.Ask) store.Answer{
				"enqueue": func(ask store.Ask) store.Answer { ask.Lease = b.lease; return b.enqueue(ask) },
				"check":   b.check,
				"cancel":  b.cancel,
			} {
				holder := a.ask(name)
				held := a.granted(holder).Token
				waiter := a.ask(name)
				waiter.TTL = longTTL
				a.queued(waiter, 1)
				a.released(claim(holder, held))
				token := a.awaitNews(waiter).Token
				if got := b.want(again(waiter), store.Granted); got.Token != token {
					f.Fatalf("%s: tokens %d and %d of one grant", name, token, got.Token)
				}
				f.nobodyWithdraws(waiter, token, a, b)
			}
		}},
		{"a queue position belongs to the instance that asked last", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			atA := a.ask("k")
			atA.TTL = longTTL
			atB := atA
			atB.Lease = b.lease
			a.queued(atA, 1)
			b.queued(atB, 1)
			a.want(a.cancel(atA), store.Gone)
			a.withdraw(atA)
			b.want(b.check(atB), store.Queued)
			b.want(b.cancel(atB), store.Gone)
			a.holds("k", token, 0)
		}},
		{"an undelivered bind:ttl lock is handed back", func(f *fixture) {
			a, b := f.pair()
			ask := a.askTTL("k", longTTL)
			c := store.Claim{Key: "k", Token: a.granted(ask).Token, Undelivered: true}
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.granted(ask) // a repeat at the same instance
			a.released(c)
			token := b.awaitNews(waiter).Token
			a.stands(a.release(c), store.UnknownToken)
			b.holds("k", token, 0)
		}},
		{"a cancel at another instance that delivers nothing lets an undelivered grant be handed back", func(f *fixture) {
			a, b := f.pair()
			ask := a.askTTL("k", longTTL)
			token := a.granted(ask).Token
			silent := ask
			silent.Undelivered = true
			if got := b.want(b.cancel(silent), store.Granted); got.Token != token {
				f.Fatalf("tokens %d and %d of one grant", token, got.Token)
			}
			a.released(store.Claim{Key: "k", Token: token, Undelivered: true})
			a.free("k")
		}},
		{"a repeat after the end of a grant gets a new grant", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			first := in.granted(ask)
			in.released(claim(ask, first.Token))
			if second := in.granted(ask); second.Token <= first.Token {
				f.Errorf("tokens %d, then %d", first.Token, second.Token)
			}
		}},
		{"a repeated enqueue keeps its position", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			first, second := b.ask("k"), a.ask("k")
			b.queued(first, 1)
			a.queued(second, 2)
			b.queued(first, 1)
			a.queued(second, 2)
			a.holds("k", token, 2)
		}},
		{"an enqueue repeated after the hand-off finds its grant", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(claim(holder, token))
			heard := b.awaitNews(waiter)
			b.sameGrant(heard, b.enqueue(waiter))
			b.sameGrant(heard, b.check(waiter))
			b.holds("k", heard.Token, 0)
		}},
		{"an acquire does not change a waiter's position", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			b.want(b.acquire(waiter), store.Held)
			b.queued(waiter, 1)
			a.holds("k", token, 1)
		}},
		{"a release repeated after a hand-off changes nothing", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			waiter := a.ask("k") // on the same lease
			a.queued(waiter, 1)
			last := b.ask("k")
			b.queued(last, 2)
			a.released(claim(holder, token))
			grant := a.awaitNews(waiter)
			a.stands(a.release(claim(holder, token)), store.UnknownToken)
			a.holds("k", grant.Token, 1)
		}},
		{"a withdrawal frees the attempt's lock", func(f *fixture) {
			a, b := f.pair()
			session, bindTTL := a.ask("k1"), a.askTTL("k2", longTTL)
			a.granted(session)
			a.granted(bindTTL)
			a.withdraw(session)
			a.withdraw(bindTTL)
			a.free("k1")
			b.granted(b.ask("k2"))
			a.withdraw(bindTTL) // another attempt holds the key by now
			a.want(a.acquire(a.ask("k2")), store.Held)
		}},
		{"a withdrawal hands off", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.withdraw(ask)
			if got := b.awaitNews(waiter); got.Token <= token {
				f.Errorf("tokens %d, then %d", token, got.Token)
			}
		}},
		{"a withdrawal removes a waiter from its queue", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			first, second := b.ask("k"), b.ask("k")
			b.queued(first, 1)
			b.queued(second, 2)
			b.withdraw(first)
			b.want(b.check(first), store.Gone)
			b.queued(second, 1)
			a.holds("k", token, 1)
		}},
		{"a withdrawal of an unknown attempt changes nothing", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			in.withdraw(ask)
			in.free("k")
			grant := in.granted(ask)
			in.withdraw(store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}})
			in.withdraw(store.Ask{Attempt: store.Attempt{Key: "other", ID: ask.ID}})
			in.holds("k", grant.Token, 0)
		}},
	}
}

// nobodyWithdraws checks that none of the instances frees a bind:ttl lock as undelivered.
func (f *fixture) nobodyWithdraws(ask store.Ask, token int64, instances ...*instance) {
	f.Helper()
	for _, in := range instances {
		in.stands(in.release(store.Claim{Key: ask.Key, Token: token, Undelivered: true}), store.OtherSession)
		in.withdraw(ask)
		in.holds(ask.Key, token, 0)
	}
}

// sameGrant checks that two answers return one grant.
func (in *instance) sameGrant(first, second store.Answer) {
	in.Helper()
	in.want(second, store.Granted)
	if second.Token != first.Token || !second.AcquiredAt.Equal(first.AcquiredAt) || second.ExpiresIn > first.ExpiresIn+oneStep+understated {
		in.Fatalf("a repeat got another grant:\n%+v, then\n%+v", first, second)
	}
}

// Proves: promise 3
func tokenCases() []testCase {
	return []testCase{
		{"tokens grow with every kind of change of the holder", tokensGrow},
		{"tokens of a key grow when many acquire it first at the same time", firstAcquisitions},
	}
}

func tokensGrow(f *fixture) {
	a, b := f.pair()
	var last int64
	grows := func(how string, answer store.Answer) {
		f.Helper()
		if answer.Token <= last {
			f.Fatalf("%s: token %d after %d", how, answer.Token, last)
		}
		last = answer.Token
	}
	ask := a.ask("k")
	grows("first", a.granted(ask))
	for range 3 {
		a.released(claim(ask, last))
		ask = a.ask("k")
		grows("release", a.granted(ask))
	}
	waiter := b.ask("k")
	b.queued(waiter, 1)
	a.released(claim(ask, last))
	grows("hand-off", b.awaitNews(waiter))
	waiter = a.ask("k")
	a.queued(waiter, 1)
	b.revoke(b.lease)
	grows("hand-off by reap", a.awaitNews(waiter))
	a.revoke(a.lease)
	a.lease, b.lease = a.openLease(longTTL), b.openLease(longTTL)
	grows("reap", b.granted(b.askTTL("k", shortTTL)))
	ask = a.ask("k")
	grows("expiry", a.takeOver(ask))
	a.withdraw(ask)
	f.sweep(a)
	ask = a.ask("k")
	grows("sweep", a.granted(ask))
}
