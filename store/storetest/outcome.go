package storetest

import (
	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 15
func outcomeCases() []testCase {
	return []testCase{
		{"a success skips the skip-waiters, and the other waiters keep their order", successSkips},
		{"a success that only skip-waiters wait for frees the key", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			first, second := b.askSkip("k"), a.askSkip("k")
			b.queued(first, 1)
			a.queued(second, 2)
			a.released(success(claim(holder, token), ``))
			a.free("k")
			b.skipped(b.check(first), ``)
			a.skipped(a.check(second), ``)
			a.granted(a.ask("k"))
			b.skipped(b.check(first), ``) // independent of the key
		}},
		{"a failure, or a release without an outcome, skips no waiter", func(f *fixture) {
			a, b := f.pair()
			for _, outcome := range []store.ReleaseOutcome{store.NoOutcome, store.Failure} {
				holder, waiter := a.ask("k"), b.askSkip("k")
				token := a.granted(holder).Token
				b.queued(waiter, 1)
				c := claim(holder, token)
				c.Outcome, c.Result = outcome, []byte(`"r"`)
				a.released(c)
				b.released(claim(waiter, b.awaitNews(waiter).Token))
			}
		}},
		{"a reap skips no waiter", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("k"))
			waiter := b.askSkip("k")
			b.queued(waiter, 1)
			a.revoke(a.lease)
			b.awaitNews(waiter)
		}},
		{"a skip-waiter gets a free key like any other attempt", func(f *fixture) {
			in := f.instance("a")
			in.granted(in.askSkip("k1"))
			in.want(in.enqueue(in.askSkip("k2")), store.Granted)
		}},
		{"a skipped waiter is notified, and again when the release is repeated", skippedHears},
		{"a cancel of a skipped waiter forgets it and returns the result", func(f *fixture) {
			in := f.instance("a")
			waiter := in.skippedWaiter("k", `{"r":1}`)
			in.skipped(in.check(waiter), `{"r":1}`)
			in.skipped(in.cancel(waiter), `{"r":1}`)
			in.want(in.cancel(waiter), store.Gone)
			in.want(in.check(waiter), store.Gone)
		}},
		{"an enqueue that is repeated after the skip reports the skip", func(f *fixture) {
			in := f.instance("a")
			waiter := in.skippedWaiter("k", `[1]`)
			in.skipped(in.enqueue(waiter), `[1]`)
			in.free("k")
			in.granted(in.ask("k"))
			in.skipped(in.enqueue(waiter), `[1]`)
			in.skipped(in.check(waiter), `[1]`)
		}},
		{"only the instance that asked last can forget a skip", func(f *fixture) {
			a, b := f.pair()
			holder, atA := a.ask("k"), a.askSkip("k")
			token := a.granted(holder).Token
			atA.TTL = longTTL
			atB := atA
			atB.Lease = b.lease
			a.queued(atA, 1)
			b.queued(atB, 1)
			a.released(success(claim(holder, token), `1`))
			a.want(a.cancel(atA), store.Gone)
			a.withdraw(atA)
			b.skipped(b.check(atB), `1`)
			b.skipped(b.cancel(atB), `1`)
		}},
		{"a skipped attempt that acquires the key holds it", func(f *fixture) {
			in := f.instance("a")
			waiter := in.skippedWaiter("k", `1`)
			first := in.granted(waiter)
			in.sameGrant(first, in.check(waiter))
			in.sameGrant(first, in.enqueue(waiter))
			in.sameGrant(first, in.cancel(waiter))
			in.released(claim(waiter, first.Token))
			in.want(in.check(waiter), store.Gone) // the cancel has forgotten the skip
		}},
		{"a withdrawal forgets a skipped waiter", func(f *fixture) {
			in := f.instance("a")
			waiter := in.skippedWaiter("k", ``)
			in.withdraw(waiter)
			in.want(in.check(waiter), store.Gone)
		}},
		{"a skipped waiter is forgotten with its lease", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			waiter := b.askUnder(b.openLease(longTTL), "k")
			waiter.Skip = true
			b.queued(waiter, 1)
			a.released(success(claim(holder, token), `1`))
			b.skipped(b.check(waiter), `1`)
			b.revoke(waiter.Lease)
			// The sweep of another test may be about to delete the waiter, as in awaitWaiting.
			b.poll("a forgotten waiter", func() bool { return b.check(waiter).Outcome == store.Gone })
		}},
		{"a repeated success does not skip later waiters", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			next := b.ask("k")
			b.queued(next, 1)
			c := success(claim(holder, token), `1`)
			a.released(c)
			late := a.askSkip("k")
			a.queued(late, 1)
			a.stands(a.release(c), store.UnknownToken)
			a.want(a.check(late), store.Queued)
			b.released(claim(next, b.awaitNews(next).Token))
			a.awaitNews(late)
		}},
		{"a success of another attempt than the holder skips no waiter", func(f *fixture) {
			a, b := f.pair()
			holder := a.ask("k")
			token := a.granted(holder).Token
			waiter := b.askSkip("k")
			b.queued(waiter, 1)
			b.stands(b.release(success(store.Claim{Key: "k", Token: token, Lease: b.lease}, ``)), store.OtherSession)
			b.stands(b.release(success(claim(holder, token-1), ``)), store.UnknownToken)
			b.want(b.check(waiter), store.Queued)
			a.holds("k", token, 1)
		}},
		{"bind:ttl locks and waiters support outcomes", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", longTTL)).Token
			waiter := b.askSkip("k")
			waiter.TTL = longTTL
			b.queued(waiter, 1)
			a.released(success(store.Claim{Key: "k", Token: token}, `"done"`))
			b.skipped(b.check(waiter), `"done"`)
			a.free("k")
		}},
		{"a release in a batch skips only the waiters of its key", successInABatch},
	}
}

// askSkip returns a new attempt that does not want the lock after a success.
func (in *instance) askSkip(key string) store.Ask {
	ask := in.ask(key)
	ask.Skip = true
	return ask
}

// success adds a success to a claim. result is JSON, or empty.
func success(c store.Claim, result string) store.Claim {
	c.Outcome = store.Success
	if result != "" {
		c.Result = []byte(result)
	}
	return c
}

// skipped checks the answer for a skipped waiter.
func (in *instance) skipped(a store.Answer, result string) {
	in.Helper()
	in.want(a, store.Skipped)
	if result == "" {
		if a.Result != nil {
			in.Fatalf("result %q, want none", a.Result)
		}
		return
	}
	in.sameJSON(a.Result, result)
}

// skippedWaiter returns a waiter of this instance that was skipped. The key is free.
func (in *instance) skippedWaiter(key, result string) store.Ask {
	in.Helper()
	holder, waiter := in.ask(key), in.askSkip(key)
	token := in.granted(holder).Token
	in.queued(waiter, 1)
	in.released(success(claim(holder, token), result))
	return waiter
}

func successSkips(f *fixture) {
	a, b := f.pair()
	holder := a.ask("k")
	token := a.granted(holder).Token
	skip1, plain1, skip2, plain2 := b.askSkip("k"), b.ask("k"), a.askSkip("k"), a.ask("k")
	b.queued(skip1, 1)
	b.queued(plain1, 2)
	a.queued(skip2, 3)
	a.queued(plain2, 4)
	a.released(success(claim(holder, token), `{"rows":7}`))
	b.skipped(b.check(skip1), `{"rows":7}`)
	a.skipped(a.check(skip2), `{"rows":7}`)
	grant := b.awaitNews(plain1)
	a.holds("k", grant.Token, 1)
	a.queued(plain2, 1)
	b.skipped(b.cancel(skip1), `{"rows":7}`)
	b.released(claim(plain1, grant.Token))
	grant = a.awaitNews(plain2)
	a.holds("k", grant.Token, 0)
	a.skipped(a.cancel(skip2), `{"rows":7}`) // the result of the first success
	a.released(claim(plain2, grant.Token))
	a.free("k")
}

func skippedHears(f *fixture) {
	a, b := f.pair()
	holder := a.ask("k")
	c := success(claim(holder, a.granted(holder).Token), `5`)
	theirs, own := b.askSkip("k"), a.askSkip("k")
	b.queued(theirs, 1)
	a.queued(own, 2)
	a.released(c)
	b.awaitSkip(theirs, `5`)
	a.awaitSkip(own, `5`)
	// A sidecar repeats a release after a lost answer. The first news may be lost, too.
	a.stands(a.release(c), store.Released)
	b.awaitSkip(theirs, `5`)
	a.awaitSkip(own, `5`)
}

// awaitSkip waits for news of a waiter, and checks that the waiter was skipped.
func (in *instance) awaitSkip(ask store.Ask, result string) {
	in.Helper()
	if !in.Traits().Polls {
		in.awaitAnyNews(ask)
	}
	in.skipped(in.check(ask), result)
}

func successInABatch(f *fixture) {
	a, b := f.pair()
	keys := []string{"k1", "k2", "k3"}
	outcomes := []store.ReleaseOutcome{store.Success, store.Failure, store.Success}
	var claims []store.Claim
	var waiters []store.Ask
	for i, key := range keys {
		holder, waiter := a.ask(key), b.askSkip(key)
		c := claim(holder, a.granted(holder).Token)
		c.Outcome, c.Result = outcomes[i], []byte(`"`+key+`"`)
		claims = append(claims, c)
		waiters = append(waiters, waiter)
		b.queued(waiter, 1)
	}
	verdicts, err := a.Release(f.ctx(), claims)
	if err != nil || len(verdicts) != len(claims) {
		f.Fatalf("release: %+v, %v", verdicts, err)
	}
	b.skipped(b.check(waiters[0]), `"k1"`)
	b.want(b.check(waiters[1]), store.Granted)
	b.skipped(b.check(waiters[2]), `"k3"`)
}
