package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// keepCases are about Keepable grants: when a grant is one, what becomes of it, and who hears that the key is wanted elsewhere. What may
// never happen is that the store gives a kept key to somebody else before it was released or its lease is dead, and that a claim of
// one grant frees another.
// Proves: promise 1, promise 3, trap kept key, trap recall
func keepCases() []testCase {
	return []testCase{
		{"an instance that comes again may keep the key", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			if l := b.holds("k", grant.Token, 0); !l.Kept || l.Holder.Lease != a.lease {
				f.Errorf("shown as %+v", l)
			}
			if found := b.lists(store.Query{Limit: 9}, "k"); !found[0].Kept {
				f.Errorf("listed as %+v", found)
			}
			if held := b.want(b.acquire(b.ask("k")), store.Held); !held.Lock.Kept {
				f.Errorf("denied by %+v", held.Lock)
			}
			a.released(claim(ask, grant.Token))
			if b.free("k"); b.get("k").Kept {
				f.Error("a free key is kept")
			}
			again := a.ask("k")
			again.Last = grant.Token
			if grant := a.want(a.enqueue(again), store.Granted); !grant.Keepable {
				f.Errorf("an ask that may wait got %+v", grant)
			}
		}},
		{"only the last holder comes again, if it released the lock", notAgain},
		{"only the exclusive lock of a session is kept", func(f *fixture) {
			a := f.instance("a")
			for name, change := range map[string]func(*store.Ask){
				"ttl":    func(ask *store.Ask) { ask.TTL = longTTL },
				"hold":   func(ask *store.Ask) { ask.MinHold = time.Millisecond },
				"skip":   func(ask *store.Ask) { ask.Skip = true },
				"shared": func(ask *store.Ask) { ask.Shared = true },
			} {
				ask := a.ask(name)
				ask.Last = a.releasedOnce(name)
				change(&ask)
				if grant := a.want(a.enqueue(ask), store.Granted); grant.Keepable || a.get(name).Kept {
					f.Errorf("%s: %+v", name, grant)
				}
			}
		}},
		{"a watched key is not kept", func(f *fixture) {
			a, b := f.pair()
			a.watch(a.lease, "own")
			b.watch(b.lease, "theirs")
			for _, key := range []string{"own", "theirs"} {
				ask := a.ask(key)
				ask.Last = a.releasedOnce(key)
				grant := a.granted(ask)
				if grant.Keepable || a.get(key).Kept {
					f.Errorf("%s: %+v", key, grant)
				}
				a.released(claim(ask, grant.Token))
			}
			b.unwatch("theirs")
			ask, grant := a.keeps("theirs")
			a.released(claim(ask, grant.Token))
		}},
		{"a keepable grant has all its tokens", keptTokens},
		{"a release of a keepable grant that comes late frees nobody else's lock", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			last := a.used(ask, grant.Token+store.TokensPerGrant-1)
			a.released(last)
			theirs := b.granted(b.ask("k")).Token
			for n := range int64(store.TokensPerGrant) {
				late := a.used(ask, grant.Token+n)
				if got := a.release(late).Status; got == store.Holds {
					f.Fatalf("the late release of %d is answered %s", late.Token, standing(got))
				}
			}
			a.refused(claim(ask, grant.Token), store.UnknownToken)
			b.holds("k", theirs, 0)
		}},
		{"a release of a keepable grant may be repeated", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			a.released(claim(ask, grant.Token))
			a.refused(claim(ask, grant.Token), store.Released)
			b.free("k")
			own := a.comesAgain("k")
			a.refused(claim(ask, grant.Token), store.UnknownToken)
			a.refused(a.used(ask, grant.Token+9), store.UnknownToken)
			b.holds("k", own.Token, 0)
		}},
		{"a kept key is recalled when somebody else begins to wait", recalls},
		{"a waiter of the instance itself recalls nothing, and hides nobody", func(f *fixture) {
			a, b := f.pair()
			if a.Traits().Polls {
				return // no news of others
			}
			ask, grant := a.keeps("k")
			own := a.ask("k")
			a.queued(own, 1)
			b.queued(b.ask("k"), 2)
			a.awaitRecall("k")
			a.cancel(own)
			a.released(claim(ask, grant.Token))
		}},
		{"a kept key is recalled when somebody else begins to watch it", func(f *fixture) {
			a, b := f.pair()
			a.keeps("k")
			b.watch(b.lease, "k")
			a.awaitRecall("k")
			b.watch(b.lease, "k") // the first one may be lost
			a.awaitRecall("k")
		}},
		{"no other lock is recalled", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("first"))
			if a.comesAgain("again"); !a.get("again").Kept {
				f.Fatal("not kept")
			}
			b.queued(b.ask("first"), 1)
			b.queued(b.ask("again"), 1)
			a.awaitRecall("again") // after the news of the other
			a.notRecalled("first")
		}},
		{"an amendment ends that a key is kept, and the first waiter hears of it", func(f *fixture) {
			f.confirms(func(a *instance, ask store.Ask, token int64) {
				a.amended(claim(ask, token), store.Change{}, store.Holds)
			})
		}},
		{"a downgrade ends that a key is kept", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			waiter := b.askShared("k", 0)
			b.queued(waiter, 1)
			a.downgraded(claim(ask, grant.Token), store.Change{}, store.Holds)
			b.awaitGrant(waiter)
			if b.get("k").Kept {
				f.Error("a share is kept")
			}
		}},
		{"an adoption makes a session that never waited the holder of a kept key", adoptsTaker},
		{"an adoption of the visible holder ends that a key is kept", func(f *fixture) {
			f.confirms(func(a *instance, ask store.Ask, token int64) {
				a.adopted(store.Adoption{
					Change: store.Change{Key: "k", Token: token, Lease: a.lease}, Served: []store.AttemptID{ask.ID}, AcquiredAt: time.Now(),
				})
			})
		}},
		{"a repeated ask may keep the key only if nobody else wants it by then", repeatsKeepable},
		{"a withdrawal frees what a keepable grant holds", func(f *fixture) {
			a, b := f.pair()
			ask, _ := a.keeps("k")
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.withdraw(ask)
			if token := b.awaitNews(waiter).Token; b.holds("k", token, 0).Kept {
				f.Error("the next lock is kept")
			}
		}},
		{"who waited for a kept key gets it like any other", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			waiter := b.ask("k")
			waiter.Last = grant.Token
			if queued := b.queued(waiter, 1); !queued.Lock.Kept {
				f.Errorf("behind %+v", queued.Lock)
			}
			a.released(claim(ask, grant.Token))
			got := b.awaitNews(waiter)
			if l := b.holds("k", got.Token, 0); l.Kept || got.Keepable || got.Token < grant.Token+store.TokensPerGrant {
				f.Errorf("got %+v, after %d: %+v", got, grant.Token, l)
			}
		}},
		{"a kept key ends with its lease", func(f *fixture) {
			a, b := f.pair()
			_, grant := a.keeps("k")
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.revoke(a.lease)
			if got := b.awaitNews(waiter); got.Token < grant.Token+store.TokensPerGrant || b.holds("k", got.Token, 0).Kept {
				f.Errorf("got %+v after %d", got, grant.Token)
			}
		}},
		{"a kept key whose lease expires is free", func(f *fixture) {
			a, b := f.pair()
			token, lease := a.keepsBriefly("k")
			a.awaitExpiry(lease, shortTTL)
			if l := b.get("k"); l.Held || l.Kept {
				f.Errorf("shown as %+v", l)
			}
			if got := b.takeOver(b.ask("k")); got.Token < token+store.TokensPerGrant {
				f.Errorf("token %d after %d", got.Token, token)
			}
		}},
		{"a moved lock stays kept, and is recalled", func(f *fixture) {
			a, b := f.pair()
			ask, grant := a.keeps("k")
			to := a.openLease(longTTL)
			a.moved(a.lease, to, store.Move{Attempt: store.Attempt{Key: "k"}, Token: grant.Token + 7}, store.Holds)
			a.revoke(a.lease)
			if l := b.holds("k", grant.Token, 0); !l.Kept || l.Holder.Lease != to {
				f.Errorf("moved: %+v", l)
			}
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.awaitRecall("k")
			a.released(claim(ask, grant.Token)) // under the lease of before
			b.awaitNews(waiter)
		}},
		{"a kept key is asked to stop, and broken, like a held one", func(f *fixture) {
			a, b := f.pair()
			_, grant := a.keeps("k")
			b.signalled(stop("k", "enough"), store.Holds)
			b.signalled(store.Signal{Kind: store.Break, Key: "k", Token: grant.Token}, store.Holds)
			a.hasSignals(2, a.lease)
			f.stopping(b.holds("k", grant.Token, 0), "enough")
		}},
		{"an ask that follows its release in the same call comes again", func(f *fixture) {
			a := f.instance("a")
			joiner, ok := a.engine.Store.(store.Joiner)
			if !ok {
				return // the engine has no such call
			}
			ask := a.ask("k")
			token := a.granted(ask).Token
			for range 3 {
				next := a.ask("k")
				next.Last = token
				answers, acquireErr, verdicts, releaseErr := joiner.AcquireAndRelease(a.ctx(), []store.Ask{next}, []store.Claim{claim(ask, token)})
				if acquireErr != nil || releaseErr != nil || verdicts[0].Status != store.Holds || !answers[0].Keepable {
					f.Fatalf("%+v, %v, %+v, %v", answers, acquireErr, verdicts, releaseErr)
				}
				ask, token = next, answers[0].Token
			}
		}},
	}
}

// releasedOnce gets and releases a key, and returns the token of that grant.
func (in *instance) releasedOnce(key string) int64 {
	in.Helper()
	ask := in.ask(key)
	token := in.granted(ask).Token
	in.released(claim(ask, token))
	return token
}

// comesAgain gets a key that the instance has just released.
func (in *instance) comesAgain(key string) store.Answer {
	in.Helper()
	ask := in.ask(key)
	ask.Last = in.releasedOnce(key)
	return in.granted(ask)
}

// keeps gets a key by a keepable grant.
func (in *instance) keeps(key string) (store.Ask, store.Answer) {
	in.Helper()
	ask := in.ask(key)
	ask.Last = in.releasedOnce(key)
	grant := in.granted(ask)
	if !grant.Keepable {
		in.Fatalf("not keepable: %+v", grant)
	}
	return ask, grant
}

// keepsBriefly does so under a lease that expires soon.
func (in *instance) keepsBriefly(key string) (token int64, lease store.LeaseID) {
	in.Helper()
	in.poll("a keepable grant under a short lease", func() bool {
		last := in.releasedOnce(key)
		lease = in.openLease(shortTTL)
		ask := in.askUnder(lease, key)
		ask.Last = last
		grant := in.acquire(ask)
		token = grant.Token
		return grant.Outcome == store.Granted && grant.Keepable
	})
	return token, lease
}

// used is the claim of a session that got a kept key from its instance. The store does not know it.
func (in *instance) used(ask store.Ask, token int64) store.Claim {
	return store.Claim{Key: ask.Key, Token: token, Lease: ask.Lease, Served: []store.AttemptID{uuid.New()}}
}

// awaitRecall waits until the key is recalled from the instance.
func (in *instance) awaitRecall(key string) {
	in.Helper()
	if in.Traits().Polls {
		return // no news of others
	}
	select {
	case <-in.recallOf(key):
	case <-time.After(patience):
		in.Fatalf("%q is not recalled", key)
	}
}

func (in *instance) notRecalled(key string) {
	in.Helper()
	select {
	case <-in.recallOf(key):
		in.Errorf("%q is recalled", key)
	default:
	}
}

func notAgain(f *fixture) {
	a, b := f.pair()
	wants := func(rule string, key string, last int64, keepable bool) {
		f.Helper()
		ask := a.ask(key)
		ask.Last = last
		grant := a.granted(ask)
		if grant.Keepable != keepable || b.get(key).Kept != keepable {
			f.Errorf("%s: %+v", rule, grant)
		}
		a.released(claim(ask, grant.Token))
	}
	wants("a key that nobody has had", "new", 7, false)
	a.releasedOnce("silent")
	wants("an ask that does not say it", "silent", 0, false)
	before := a.releasedOnce("before")
	last := a.releasedOnce("before")
	wants("the grant before the last", "before", before, false)
	wants("the last grant, of long ago", "before", last, false)
	mine := a.releasedOnce("between")
	b.releasedOnce("between")
	wants("somebody else had it in between", "between", mine, false)
	lease := a.openLease(longTTL)
	lost := a.granted(a.askUnder(lease, "lost")).Token
	a.revoke(lease)
	wants("the lock was lost, not released", "lost", lost, false)
	ask := a.ask("adopted")
	ask.Last = a.releasedOnce("adopted")
	token := a.granted(ask).Token
	a.adopted(store.Adoption{
		Change: store.Change{Key: "adopted", Token: token + 3, Lease: a.lease}, Served: []store.AttemptID{uuid.New()}, AcquiredAt: time.Now(),
	})
	a.released(a.used(ask, token+5))
	wants("the token that the store knew last is an adopted one", "adopted", token+3, true)
	wants("the grant of before that", "adopted", token, false)
}

func keptTokens(f *fixture) {
	a, b := f.pair()
	ask, grant := a.keeps("k")
	last := grant.Token + store.TokensPerGrant - 1
	a.refused(a.used(ask, last+1), store.UnknownToken)
	a.released(a.used(ask, last))
	if next := b.releasedOnce("k"); next <= last {
		f.Errorf("token %d after %d", next, last)
	}
	// The next grant has greater ones too if the lock was lost.
	lease := a.openLease(longTTL)
	lost := a.askUnder(lease, "lost")
	lost.Last = a.releasedOnce("lost")
	last = a.granted(lost).Token + store.TokensPerGrant - 1
	a.revoke(lease)
	if next := b.granted(b.ask("lost")).Token; next <= last {
		f.Errorf("token %d after the lost %d", next, last)
	}
	// So it has after swaps that grant nothing.
	amended, grant := a.keeps("amended")
	for range 3 {
		a.amended(claim(amended, grant.Token), store.Change{SetData: true, Data: []byte(`1`)}, store.Holds)
	}
	a.released(a.used(amended, grant.Token+store.TokensPerGrant-1))
	if next := b.granted(b.ask("amended")).Token; next < grant.Token+store.TokensPerGrant {
		f.Errorf("token %d after %d", next, grant.Token)
	}
}

func recalls(f *fixture) {
	a, b := f.pair()
	ask, grant := a.keeps("k")
	for range 3 { // each queue that begins
		first, second := b.ask("k"), b.ask("k")
		b.queued(first, 1)
		a.awaitRecall("k")
		b.queued(second, 2)
		b.holds("k", grant.Token, 2) // until its instance gives it up
		b.cancel(first)
		b.cancel(second)
	}
	if a.Traits().Final { // PostgreSQL sends recalls after the commit, and so one for each waiter, because some may be lost
		a.notRecalled("k")
	}
	waiter := b.ask("k")
	b.queued(waiter, 1)
	a.awaitRecall("k")
	a.released(a.used(ask, grant.Token+1))
	b.awaitNews(waiter)
}

// confirms tests what makes the holder of a kept key certain for others.
func (f *fixture) confirms(confirm func(a *instance, ask store.Ask, token int64)) {
	f.Helper()
	a, b := f.pair()
	ask, grant := a.keeps("k")
	waiter := b.ask("k")
	b.queued(waiter, 1)
	confirm(a, ask, grant.Token)
	if l := b.holds("k", grant.Token, 1); l.Kept {
		f.Errorf("still kept: %+v", l)
	}
	if !b.Traits().Polls {
		b.awaitAnyNews(waiter)
	}
	if behind := b.want(b.check(waiter), store.Queued); behind.Lock.Kept {
		f.Errorf("waits behind %+v", behind.Lock)
	}
	confirm(a, ask, grant.Token) // a repeat
	a.released(claim(ask, grant.Token))
	b.awaitNews(waiter)
}

func adoptsTaker(f *fixture) {
	a, b := f.pair()
	ask, grant := a.keeps("k")
	waiter := b.ask("k")
	b.queued(waiter, 1)
	taker := uuid.New()
	adoption := store.Adoption{
		Change: store.Change{Key: "k", Token: grant.Token + 5, Lease: a.lease}, Served: []store.AttemptID{taker},
		Session: "taker", Owner: "o", AcquiredAt: time.Now(),
	}
	for range 2 {
		a.adopted(adoption)
		if l := b.holds("k", grant.Token+5, 1); l.Kept || l.Holder.Session != "taker" {
			f.Errorf("adopted: %+v", l)
		}
	}
	if !b.Traits().Polls {
		b.awaitAnyNews(waiter)
	}
	a.refused(claim(ask, grant.Token), store.UnknownToken)
	served := store.Claim{Key: "k", Token: grant.Token + 5, Lease: a.lease, Served: []store.AttemptID{taker}}
	a.released(served)
	next := b.awaitNews(waiter)
	a.refused(served, store.UnknownToken)
	b.holds("k", next.Token, 0)
}

func repeatsKeepable(f *fixture) {
	a, b := f.pair()
	ask, grant := a.keeps("k")
	for name, again := range map[string]func(store.Ask) store.Answer{"acquire": a.acquire, "enqueue": a.enqueue} {
		if got := a.want(again(ask), store.Granted); got.Token != grant.Token || !got.Keepable {
			f.Errorf("%s: %+v", name, got)
		}
	}
	foreign := ask
	foreign.Lease = b.lease
	if got := b.want(b.acquire(foreign), store.Granted); got.Token != grant.Token || got.Keepable {
		f.Errorf("another instance with the same attempt: %+v", got)
	}
	waiter := b.ask("k")
	b.queued(waiter, 1)
	a.awaitRecall("k")
	if got := a.want(a.acquire(ask), store.Granted); got.Keepable {
		f.Errorf("after the recall: %+v", got)
	}
	b.cancel(waiter)
	watched, _ := a.keeps("watched")
	b.watch(b.lease, "watched")
	if got := a.want(a.acquire(watched), store.Granted); got.Keepable {
		f.Errorf("watched: %+v", got)
	}
}
