package storetest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 5
func deathCases() []testCase {
	return []testCase{
		{"a reap hands off to the first waiter", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			first, second := b.ask("k"), b.ask("k")
			b.queued(first, 1)
			b.queued(second, 2)
			a.revoke(a.lease)
			lock := b.get("k")
			if !lock.Held || lock.Token <= token || lock.QueueLength != 1 {
				f.Fatalf("after the reap: %+v", lock)
			}
			if got := b.awaitNews(first); got.Token != lock.Token {
				f.Errorf("news of token %d, the lock has %d", got.Token, lock.Token)
			}
			b.want(b.check(second), store.Queued)
		}},
		{"a reap hands off or frees every key", reapOfManyKeys},
		{"a reap drops the waiters of the dead lease", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			dead := b.openLease(longTTL)
			first, second := b.askUnder(dead, "k"), b.ask("k")
			b.queued(first, 1)
			b.queued(second, 2)
			b.revoke(dead)
			a.awaitWaiting("k", token, 1)
			b.want(b.check(first), store.Gone)
			b.queued(second, 1)
			a.holds("k", token, 1)
			a.released(claim(ask, token))
			b.awaitNews(second)
		}},
		{"a reap leaves other leases untouched", func(f *fixture) {
			a, b := f.pair()
			other := a.openLease(longTTL)
			a.granted(a.ask("k1"))
			kept := a.granted(a.askUnder(other, "k2"))
			theirs := b.granted(b.ask("k3"))
			waiter := a.askUnder(other, "k3")
			a.queued(waiter, 1)
			a.revoke(a.lease)
			a.free("k1")
			a.holds("k2", kept.Token, 0)
			a.holds("k3", theirs.Token, 1)
			a.want(a.check(waiter), store.Queued)
		}},
		{"a repeated revocation, and that of an unknown lease, change nothing", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("k"))
			a.revoke(a.lease)
			grant := b.granted(b.ask("k"))
			a.revoke(a.lease, uuid.New())
			b.holds("k", grant.Token, 0)
		}},
		{"a reap of a stopped instance ends all its renewed leases", instanceIsReaped},
		{"reaping an instance drops its waiters", func(f *fixture) {
			a, b := f.pair()
			ask := b.ask("k")
			token := b.granted(ask).Token
			first, second := a.ask("k"), b.ask("k")
			a.queued(first, 1)
			b.queued(second, 2)
			b.reapInstance(a.id.Instance)
			b.awaitWaiting("k", token, 1)
			b.want(b.check(first), store.Gone)
			b.queued(second, 1)
		}},
		{"a reap of an unknown instance, or a repeated one, changes nothing", func(f *fixture) {
			a, b := f.pair()
			kept, bindTTL := a.granted(a.ask("k")), a.granted(a.askTTL("t", longTTL))
			b.reapInstance("unknown-" + uuid.NewString())
			b.reapInstance("") // the lease of a bind:ttl lock has no instance
			a.holds("k", kept.Token, 0)
			a.holds("t", bindTTL.Token, 0)
			b.reapInstance(a.id.Instance)
			b.reapInstance(a.id.Instance)
			a.want(a.acquire(a.ask("k")), store.LeaseLost)
			b.granted(b.ask("k"))
		}},
		{"the waiter of an expired lease is skipped", expiredWaiterSkipped},
		{"a key becomes free when all its waiters are dead", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			dead, waiter := b.shortWait("k", 1)
			b.awaitExpiry(dead, shortTTL)
			a.released(claim(ask, token))
			b.free("k")
			b.want(b.check(waiter), store.Gone)
			a.granted(a.ask("k"))
		}},
		{"a waiter's check takes the lock from an expired lease", func(f *fixture) {
			a, b := f.pair()
			dead, first := a.shortHold("k")
			waiter := b.ask("k")
			if got := b.enqueue(waiter); got.Outcome == store.Queued {
				got = b.awaitGrant(waiter)
				if got.Token <= first.Token {
					f.Errorf("tokens %d, then %d", first.Token, got.Token)
				}
			}
			if alive := a.renew(dead.Lease); len(alive) != 0 {
				f.Error("a lease was renewed after its lock was taken")
			}
		}},
		{"a newcomer does not overtake the waiters of an expired holder", expiredHolderNewcomer},
		{"a newcomer's enqueue takes the lock from an expired lease", func(f *fixture) {
			a, b := f.pair()
			dead, first := a.shortHold("k")
			a.awaitExpiry(dead.Lease, shortTTL)
			got := b.want(b.enqueue(b.ask("k")), store.Granted)
			if got.Token <= first.Token {
				f.Errorf("tokens %d, then %d", first.Token, got.Token)
			}
		}},
		{"a sweep touches nothing that is alive", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			bindTTL := a.granted(a.askTTL("t", longTTL)).Token
			for range 3 {
				f.sweep(a)
				f.sweep(b)
			}
			a.holds("k", token, 1)
			a.holds("t", bindTTL, 0)
			b.want(b.check(waiter), store.Queued)
		}},
		{"a sweep never frees a key with living waiters", func(f *fixture) {
			a, b := f.pair()
			dead, _ := a.shortHold("k")
			waiter := b.ask("k")
			if b.enqueue(waiter).Outcome == store.Granted {
				return // the short lease ended too early; other cases prove the rule
			}
			a.awaitExpiry(dead.Lease, shortTTL)
			f.sweep(a)
			a.want(a.acquire(a.ask("k")), store.Held)
			b.awaitGrant(waiter)
		}},
	}
}

func (f *fixture) sweep(in *instance) {
	f.Helper()
	if err := in.Sweep(f.ctx()); err != nil {
		f.Fatalf("Sweep: %v", err)
	}
}

// shortWait queues an attempt for a held key, under a fresh lease that will expire soon.
func (in *instance) shortWait(key string, position int) (store.LeaseID, store.Ask) {
	in.Helper()
	var ask store.Ask
	in.poll("a queue position under a short lease", func() bool {
		ask = in.askUnder(in.openLease(shortTTL), key)
		a := in.enqueue(ask)
		if a.Outcome == store.Queued && a.Position > position { // on a slow machine some before it have expired
			in.Fatalf("queue position %d, want at most %d", a.Position, position)
		}
		return a.Outcome == store.Queued
	})
	return ask.Lease, ask
}

func reapOfManyKeys(f *fixture) {
	a, b := f.pair()
	const n = 40
	tokens := make([]int64, n)
	waiters := make([]store.Ask, n)
	key := func(i int) string { return fmt.Sprintf("key:%d", i) }
	for i := range n {
		tokens[i] = a.granted(a.ask(key(i))).Token
		if i%2 == 0 {
			waiters[i] = b.ask(key(i))
			b.queued(waiters[i], 1)
		}
	}
	a.revoke(a.lease)
	for i := range n {
		if i%2 == 1 {
			b.free(key(i))
			continue
		}
		if got := b.awaitNews(waiters[i]); got.Token <= tokens[i] {
			f.Fatalf("tokens %d, then %d", tokens[i], got.Token)
		}
	}
}

// reapInstance reaps the leases of an instance.
func (in *instance) reapInstance(instance string) {
	in.Helper()
	if err := in.ReapInstance(in.ctx(), instance); err != nil {
		in.Fatalf("ReapInstance: %v", err)
	}
}

func instanceIsReaped(f *fixture) {
	a, b := f.pair()
	other := a.openLease(2 * longTTL)
	free, contended := a.ask("free"), a.askUnder(other, "contended")
	a.granted(free)
	token := a.granted(contended).Token
	bindTTL := a.granted(a.askTTL("ttl", longTTL)).Token
	theirs := b.granted(b.ask("theirs")).Token
	waiter, patient := b.ask("contended"), b.ask("ttl")
	b.queued(waiter, 1)
	b.queued(patient, 1)
	a.Stop()

	b.reapInstance(a.id.Instance)
	b.free("free")
	if got := b.awaitNews(waiter); got.Token <= token {
		f.Errorf("tokens %d, then %d", token, got.Token)
	}
	b.holds("ttl", bindTTL, 1)
	b.want(b.check(patient), store.Queued)
	b.holds("theirs", theirs, 0)
	if alive := b.renew(a.lease, other, b.lease); len(alive) != 1 || alive[0] != b.lease {
		f.Errorf("renewed %v, want only the leases of the living instance", alive)
	}
}

func expiredWaiterSkipped(f *fixture) {
	a, b := f.pair()
	ask := a.ask("k")
	token := a.granted(ask).Token
	const dead = 4
	leases := make([]store.LeaseID, dead)
	waiters := make([]store.Ask, dead)
	for i := range dead {
		leases[i], waiters[i] = b.shortWait("k", i+1)
	}
	living := b.ask("k")
	b.want(b.enqueue(living), store.Queued)
	<-time.After(shortTTL + pause)
	if alive := b.renew(leases...); len(alive) != 0 {
		f.Fatalf("%d leases were renewed after their end", len(alive))
	}
	a.released(claim(ask, token))
	grant := b.awaitNews(living)
	b.awaitWaiting("k", grant.Token, 0)
	for _, w := range waiters {
		b.want(b.check(w), store.Gone)
		select {
		case n := <-b.newsOf(w.ID):
			f.Errorf("a waiter whose lease had expired was granted: %+v", n)
		default:
		}
	}
}

func expiredHolderNewcomer(f *fixture) {
	a, b := f.pair()
	dead, _ := a.shortHold("k")
	first := b.ask("k")
	if b.enqueue(first).Outcome == store.Granted {
		// The short lease ended too early on a slow machine. This is not a failure.
		return
	}
	a.awaitExpiry(dead.Lease, shortTTL)
	a.want(a.acquire(a.ask("k")), store.Held)
	a.want(a.enqueue(a.ask("k")), store.Queued)
	grant := b.awaitNews(first)
	b.holds("k", grant.Token, 1)
}
