package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// traceparents as apps send them
const (
	oneTrace     = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	anotherTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

func traceCases() []testCase {
	return []testCase{
		{"a waiter learns which release handed it the lock", func(f *fixture) {
			a, b := f.pair()
			for _, waits := range []*instance{a, b} { // on the releasing instance, and on another
				claims, waiter := a.handedTo(waits, oneTrace)
				a.released(claims)
				heard := waits.awaitNews(waiter)
				waits.handed(heard, oneTrace)
				waits.handed(waits.want(waits.check(waiter), store.Granted), oneTrace)
				waits.released(claim(waiter, heard.Token))
			}
		}},
		{"a grant that is found again still names the release that handed it over", func(f *fixture) {
			a, b := f.pair()
			claims, waiter := a.handedTo(b, oneTrace)
			a.released(claims)
			b.handed(b.want(b.enqueue(waiter), store.Granted), oneTrace)
			b.handed(b.want(b.acquire(waiter), store.Granted), oneTrace)
			b.handed(b.want(b.cancel(waiter), store.Granted), oneTrace)
		}},
		{"a bind:ttl waiter learns which release handed it the lock", func(f *fixture) {
			a, b := f.pair()
			claims, waiter := a.handedTo(b, oneTrace)
			b.gaveUp(b.cancel(waiter), 1)
			waiter = b.ask("k")
			waiter.TTL = time.Minute
			b.queued(waiter, 1)
			a.released(claims)
			b.handed(b.awaitNews(waiter), oneTrace)
			b.handed(b.want(b.acquire(waiter), store.Granted), oneTrace)
		}},
		{"each hand-off names its own release", func(f *fixture) {
			a, b := f.pair()
			claims, second := a.handedTo(b, oneTrace)
			third, fourth := a.ask("k"), b.ask("k")
			a.queued(third, 2)
			b.queued(fourth, 3)
			a.released(claims)
			claims = claim(second, b.awaitNews(second).Token)
			claims.Traceparent = anotherTrace
			b.released(claims)
			grant := a.awaitNews(third)
			a.handed(grant, anotherTrace)
			a.released(claim(third, grant.Token)) // without a trace
			b.handed(b.awaitNews(fourth), "")
			b.handed(b.want(b.enqueue(fourth), store.Granted), "")
		}},
		{"a grant of a free key names no release", notHandedOver},
		{"a hand-off by a reap names no release", func(f *fixture) {
			a, b := f.pair()
			claims, second := a.handedTo(b, oneTrace)
			second.Lease = b.openLease(longTTL)
			b.gaveUp(b.cancel(second), 1)
			b.queued(second, 1)
			third := a.ask("k")
			a.queued(third, 2)
			a.released(claims)
			b.handed(b.awaitNews(second), oneTrace)
			b.revoke(second.Lease)
			a.handed(a.awaitNews(third), "")
		}},
		{"a waiter learns how long ago it was granted", func(f *fixture) {
			a, b := f.pair()
			claims, waiter := a.handedTo(b, "")
			a.released(claims)
			heard := b.awaitNews(waiter)
			for _, other := range []store.Answer{heard, b.check(waiter), b.enqueue(waiter), b.cancel(waiter)} {
				b.want(other, store.Granted)
				if other.GrantedFor < 0 || other.GrantedFor > patience {
					f.Errorf("granted for %v", other.GrantedFor)
				}
			}
			b.poll("the grant grows older", func() bool { return b.check(waiter).GrantedFor > heard.GrantedFor+pause })
			if age, held := b.check(waiter).GrantedFor, b.get("k").Holder.HeldFor; age > held {
				f.Errorf("granted for %v, but held for %v", age, held)
			}
		}},
	}
}

// handedTo acquires a key and queues an ask of to. It returns the claim whose release will hand the
// lock over.
func (in *instance) handedTo(to *instance, traceparent string) (store.Claim, store.Ask) {
	in.Helper()
	ask, waiter := in.ask("k"), to.ask("k")
	c := claim(ask, in.granted(ask).Token)
	c.Traceparent = traceparent
	to.queued(waiter, 1)
	return c, waiter
}

// handed checks which release handed a lock over. by is empty if the lock was free before.
func (in *instance) handed(a store.Answer, by string) {
	in.Helper()
	if a.HandedBy != by {
		in.Fatalf("handed over by %q, want %q", a.HandedBy, by)
	}
}

// notHandedOver frees a key that was handed over, and acquires it again in every way.
func notHandedOver(f *fixture) {
	a, b := f.pair()
	again := func(what string, ask store.Ask, get func(store.Ask) store.Answer) {
		f.Helper()
		claims, waiter := a.handedTo(b, oneTrace)
		a.released(claims)
		grant := b.awaitNews(waiter)
		b.handed(grant, oneTrace)
		last := claim(waiter, grant.Token)
		last.Traceparent = anotherTrace
		b.released(last)
		for range 2 { // the second call finds the grant again
			if grant = a.want(get(ask), store.Granted); grant.HandedBy != "" {
				f.Errorf("%s: handed over by %q", what, grant.HandedBy)
			}
		}
		a.handed(a.want(a.check(ask), store.Granted), "")
		a.released(claim(ask, grant.Token))
	}
	byTTL, kept := a.askTTL("k", longTTL), a.askUnder(a.openLease(longTTL), "k")
	kept.MinHold = time.Microsecond
	again("acquired", a.ask("k"), a.acquire)
	again("enqueued", a.ask("k"), a.enqueue)
	again("by TTL", byTTL, a.acquire)
	again("with a hold", kept, a.acquire)
}
