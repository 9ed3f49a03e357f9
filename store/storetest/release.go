package storetest

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

func releaseCases() []testCase {
	return []testCase{
		{"a release frees the key and says how long a bind:ttl lock was held", func(f *fixture) {
			a, b := f.pair()
			ask, byTTL := a.ask("k"), a.ask("ttl")
			byTTL.TTL, byTTL.Traceparent = longTTL, "t"
			token := a.granted(ask).Token
			a.released(claim(ask, token))
			token = a.granted(byTTL).Token
			held := b.get("ttl").Holder.HeldFor
			was := b.released(claim(byTTL, token)) // key and token are enough for a claim
			if was.Traceparent != "t" || was.HeldFor < held {
				f.Errorf("the lock as it was: %+v", was)
			}
			b.free("k")
			b.granted(b.ask("k"))
		}},
		{"a repeated release is reported as released and changes nothing", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			c := claim(ask, in.granted(ask).Token)
			in.released(c)
			in.stands(in.release(c), store.Released)
			in.free("k")
		}},
		{"a token without a grant is unknown", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			in.stands(in.release(claim(ask, 1)), store.UnknownToken)
			token := in.granted(ask).Token
			in.stands(in.release(claim(ask, token-1)), store.UnknownToken)
			in.stands(in.release(claim(ask, token+1)), store.UnknownToken)
			in.stands(in.release(claim(in.ask("other"), token)), store.UnknownToken)
			in.holds("k", token, 0)
		}},
		{"only the session of a lock releases it", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.ask("k")).Token
			for _, lease := range []store.LeaseID{b.lease, uuid.New(), {}} {
				c := store.Claim{Key: "k", Token: token, Lease: lease}
				b.stands(b.release(c), store.OtherSession)
			}
			b.holds("k", token, 0)
		}},
		{"a bind:ttl lock is released by key and token", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", longTTL)).Token
			b.stands(b.release(store.Claim{Key: "k", Token: token + 1}), store.UnknownToken)
			b.released(store.Claim{Key: "k", Token: token})
			a.stands(a.release(store.Claim{Key: "k", Token: token}), store.Released)
			token = a.granted(a.askTTL("k", longTTL)).Token
			b.released(store.Claim{Key: "k", Token: token, Lease: b.lease})
			b.free("k")
		}},
		{"a lock whose lease expired is reported as expired, not as released", func(f *fixture) {
			in := f.instance("a")
			ask, grant := in.shortHold("k")
			in.awaitExpiry(ask.Lease, shortTTL)
			in.stands(in.release(claim(ask, grant.Token)), store.Expired)
			in.free("k")
		}},
		{"a claim ends a grant whose lease expired but is not dead", func(f *fixture) {
			a, b := f.pair()
			if a.Traits().Final {
				f.Skip("a lease that has expired is dead")
			}
			ask, grant := a.shortHold("k")
			waiter := b.ask("k")
			if b.enqueue(waiter).Outcome != store.Queued {
				return // the lease expired too early
			}
			a.awaitExpiry(ask.Lease, shortTTL)
			b.stands(b.release(store.Claim{Key: "k", Token: grant.Token, Lease: b.lease}), store.OtherSession)
			a.stands(a.release(claim(ask, grant.Token)), store.Expired)
			b.holds("k", b.awaitNews(waiter).Token, 0)
		}},
		{"a bind:ttl lock whose TTL is over is reported as expired", func(f *fixture) {
			in := f.instance("a")
			token := in.granted(in.askTTL("k", shortTTL)).Token
			in.poll("the end of the lock", func() bool { return !in.get("k").Held })
			in.stands(in.release(store.Claim{Key: "k", Token: token}), store.Expired)
		}},
		{"a lock whose lease was reaped is reported as expired", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			token := in.granted(ask).Token
			in.revoke(in.lease)
			in.stands(in.release(claim(ask, token)), store.Expired)
		}},
		{"a late release does not affect the next holder", func(f *fixture) {
			a, b := f.pair()
			late, first := a.shortHold("k")
			second := b.takeOver(b.ask("k"))
			a.stands(a.release(claim(late, first.Token)), store.UnknownToken)
			b.holds("k", second.Token, 0)
		}},
		{"a release hands the key off to the first waiter", releaseHandsOff},
	}
}

// shortenedForAWaiter: the waiter's sidecar plans its next check for a minute later. A hint makes
// it check, and it finds that the lock ends soon.
func shortenedForAWaiter(f *fixture) {
	a, b := f.pair()
	token := a.granted(a.askTTL("k", time.Minute)).Token
	first, second := b.ask("k"), a.ask("k")
	b.queued(first, 1)
	a.queued(second, 2)
	a.amended(store.Claim{Key: "k", Token: token}, store.Change{TTL: 300 * time.Millisecond}, store.Holds)
	if !b.Traits().Polls {
		b.awaitAnyNews(first)
	}
	if got := b.awaitGrant(first); got.Token <= token {
		f.Errorf("tokens %d, then %d", token, got.Token)
	}
	a.want(a.check(second), store.Queued)
}

func releaseHandsOff(f *fixture) {
	a, b := f.pair()
	ask := a.ask("k")
	first := a.granted(ask)
	waiter := b.ask("k")
	waiter.Session, waiter.Owner, waiter.Data = "waiting", "w", []byte(`{"w":true}`)
	b.queued(waiter, 1)
	a.released(claim(ask, first.Token))
	// The hand-off is the release: the key is never free in between.
	lock := a.get("k")
	if !lock.Held || lock.Token <= first.Token || lock.QueueLength != 0 {
		f.Fatalf("after a hand-off: %+v", lock)
	}
	news := b.awaitNews(waiter)
	if news.Token != lock.Token || !news.AcquiredAt.Equal(lock.Holder.AcquiredAt) {
		f.Errorf("news of token %d at %v, but the lock has %d at %v",
			news.Token, news.AcquiredAt, lock.Token, lock.Holder.AcquiredAt)
	}
	if h := lock.Holder; h.Session != "waiting" || h.Owner != "w" || h.Lease != b.lease || !h.Renewed ||
		h.Instance != b.id.Instance || h.Pod != b.id.Pod {
		f.Errorf("holder after the hand-off: %+v", h)
	}
	f.sameJSON(lock.Holder.Data, `{"w":true}`)
	a.stands(a.release(claim(ask, first.Token)), store.UnknownToken)
	b.released(claim(waiter, news.Token))
	b.free("k")
}

func amendCases() []testCase {
	return []testCase{
		{"an empty change confirms that the lock is held", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			ask.Data = []byte(`{"a":1}`)
			token := in.granted(ask).Token
			v := in.amended(claim(ask, token), store.Change{}, store.Holds)
			if !v.Lock.Held || v.Lock.Token != token || v.Lock.Holder.ExpiresIn <= 0 {
				f.Errorf("the lock after the change: %+v", v.Lock)
			}
			f.sameJSON(v.Lock.Holder.Data, `{"a":1}`)
		}},
		{"data is replaced, and removed by nil", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			ask.Data = []byte(`{"a":1}`)
			token := in.granted(ask).Token
			data := []byte(`[2]`)
			v := in.amended(claim(ask, token), store.Change{SetData: true, Data: data}, store.Holds)
			f.sameJSON(v.Lock.Holder.Data, `[2]`)
			copy(data, `{9}`)
			f.sameJSON(in.get("k").Holder.Data, `[2]`)
			in.amended(claim(ask, token), store.Change{SetData: true}, store.Holds)
			if d := in.get("k").Holder.Data; d != nil {
				f.Errorf("data %q after its removal", d)
			}
		}},
		{"a wrong claim changes nothing", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			ask.Data = []byte(`1`)
			token := a.granted(ask).Token
			theirs := store.Claim{Key: "k", Token: token, Lease: b.lease}
			b.amended(theirs, store.Change{SetData: true, Data: []byte(`2`)}, store.OtherSession)
			unknown := store.Claim{Key: "k", Token: token + 1, Lease: a.lease}
			a.amended(unknown, store.Change{SetData: true, Data: []byte(`2`)}, store.UnknownToken)
			a.amended(store.Claim{Key: "never", Token: 1}, store.Change{}, store.UnknownToken)
			f.sameJSON(a.get("k").Holder.Data, `1`)
			a.released(claim(ask, token))
			a.amended(claim(ask, token), store.Change{}, store.Released)
			a.free("k")
		}},
		{"a bind:ttl lock is extended by key and token", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", 10*time.Second)).Token
			c := store.Claim{Key: "k", Token: token}
			v := b.amended(c, store.Change{TTL: longTTL}, store.Holds)
			if v.Lock.Holder.ExpiresIn <= 10*time.Second || v.Lock.Holder.ExpiresIn > longTTL {
				f.Errorf("expires in %v, want %v at most", v.Lock.Holder.ExpiresIn, longTTL)
			}
			a.holds("k", token, 0)
		}},
		{"a bind:ttl lock can be shortened", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", longTTL)).Token
			c := store.Claim{Key: "k", Token: token}
			a.amended(c, store.Change{TTL: shortTTL}, store.Holds)
			b.takeOver(b.ask("k"))
		}},
		{"the waiter behind a bind:ttl lock that is shortened is notified", shortenedForAWaiter},
		{"a TTL in a change does not affect a renewed lease", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			token := in.granted(ask).Token
			in.amended(claim(ask, token), store.Change{TTL: time.Second}, store.Holds)
			if left := in.get("k").Holder.ExpiresIn; left < longTTL/2 {
				f.Errorf("the lease ends in %v", left)
			}
		}},
		{"an expired lock is not revived", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", shortTTL)).Token
			a.poll("the end of the lock", func() bool { return !a.get("k").Held })
			c := store.Claim{Key: "k", Token: token}
			a.amended(c, store.Change{TTL: longTTL}, store.Expired)
			b.granted(b.ask("k"))
		}},
	}
}
