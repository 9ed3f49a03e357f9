package storetest

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

func acquireCases() []testCase {
	return []testCase{
		{"an acquire of a free key is granted, and all instances see the holder", grantShown},
		{"an acquire of a held key is denied, and the answer names the holder", func(f *fixture) {
			a, b := f.pair()
			grant := a.granted(a.ask("k"))
			denied := b.want(b.acquire(b.ask("k")), store.Held)
			if h := denied.Lock.Holder; denied.Lock.Key != "k" || denied.Lock.Token != grant.Token ||
				h.Instance != a.id.Instance || h.Pod != a.id.Pod || h.ExpiresIn <= 0 {
				f.Fatalf("denied with %+v", denied.Lock)
			}
			b.holds("k", grant.Token, 0)
		}},
		{"another attempt under the same lease is denied", func(f *fixture) {
			in := f.instance("a")
			grant := in.granted(in.ask("k"))
			in.want(in.acquire(in.ask("k")), store.Held)
			in.holds("k", grant.Token, 0)
		}},
		{"an acquire of one key leaves other keys free", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("pull:img1"))
			b.granted(b.ask("delete:img1"))
			b.granted(b.ask("pull:img1:"))
			b.granted(b.ask("pull:img1 "))
			b.granted(b.ask("PULL:img1"))
		}},
		{"a bind:ttl lock has an unrenewed lease of its own", bindTTLGrant},
		{"a bind:ttl lock ends after its TTL", func(f *fixture) {
			a, b := f.pair()
			first := a.granted(a.askTTL("k", shortTTL))
			second := b.takeOver(b.ask("k"))
			if second.Token <= first.Token {
				f.Fatalf("tokens %d, then %d", first.Token, second.Token)
			}
		}},
		{"the lock of an expired lease is taken over", func(f *fixture) {
			a, b := f.pair()
			ask, first := a.shortHold("k")
			second := b.takeOver(b.ask("k"))
			if second.Token <= first.Token {
				f.Fatalf("tokens %d, then %d", first.Token, second.Token)
			}
			if alive := a.renew(ask.Lease); len(alive) != 0 {
				f.Fatal("a lease was renewed after its lock was taken over")
			}
		}},
		{"the locks of a reaped lease are free at once", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("k1"))
			a.granted(a.ask("k2"))
			a.revoke(a.lease)
			a.free("k1")
			b.granted(b.ask("k1"))
			b.granted(b.ask("k2"))
		}},
		{"the store copies the data of an ask", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			ask.Data = []byte(`{"n":1}`)
			a.granted(ask)
			waiter := b.ask("k")
			waiter.Data = []byte(`{"n":2}`)
			b.queued(waiter, 1)
			copy(ask.Data, `[9,9,9]`)
			copy(waiter.Data, `[8,8,8]`)
			f.sameJSON(b.get("k").Holder.Data, `{"n":1}`)
			a.revoke(a.lease)
			f.sameJSON(b.get("k").Holder.Data, `{"n":2}`)
		}},
		{"data of any JSON kind comes back", func(f *fixture) {
			in := f.instance("a")
			for i, data := range []string{`null`, `true`, `0`, `"\u0022 ' \\ ü €"`, `[]`, `{"a":{"b":[1,null]}}`} {
				ask := in.ask(string(rune('a' + i)))
				ask.Data = []byte(data)
				in.granted(ask)
				f.sameJSON(in.get(ask.Key).Holder.Data, data)
			}
		}},
	}
}

// takeOver acquires a key as soon as the lease of its holder has expired.
func (in *instance) takeOver(ask store.Ask) (a store.Answer) {
	in.Helper()
	in.poll("the end of the holder's lease", func() bool {
		a = in.acquire(ask)
		if a.Outcome != store.Granted && a.Outcome != store.Held {
			in.Fatalf("outcome %s while waiting for an expiry", name(a.Outcome))
		}
		return a.Outcome == store.Granted
	})
	return in.want(a, store.Granted)
}

func grantShown(f *fixture) {
	a, b := f.pair()
	ask := a.ask("type:id:sub")
	ask.Session, ask.Owner = "session-1", "owner-1"
	ask.Data = []byte(`{"step":[1,"two"]}`)
	ask.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	grant := a.granted(ask)
	if grant.ExpiresIn > longTTL {
		f.Errorf("expires in %v under a lease of %v", grant.ExpiresIn, longTTL)
	}
	lock := b.holds(ask.Key, grant.Token, 0)
	h := lock.Holder
	f.sameJSON(h.Data, string(ask.Data))
	if h.HeldFor < 0 || h.HeldFor > time.Minute || h.ExpiresIn <= 0 || h.ExpiresIn > longTTL {
		f.Errorf("held for %v, expires in %v", h.HeldFor, h.ExpiresIn)
	}
	if !h.AcquiredAt.Equal(grant.AcquiredAt) {
		f.Errorf("acquired at %v by the answer, at %v by Get", grant.AcquiredAt, h.AcquiredAt)
	}
	h.HeldFor, h.ExpiresIn, h.Data, h.AcquiredAt = 0, 0, nil, time.Time{}
	want := store.Holder{
		Instance: a.id.Instance, Pod: a.id.Pod, Session: ask.Session, Owner: ask.Owner,
		Lease: ask.Lease, Renewed: true, Traceparent: ask.Traceparent,
	}
	if !reflect.DeepEqual(h, want) {
		f.Errorf("holder %+v\nwant %+v", h, want)
	}
}

func bindTTLGrant(f *fixture) {
	a, b := f.pair()
	ask := a.askTTL("k", time.Minute)
	grant := a.granted(ask)
	if grant.ExpiresIn > time.Minute || grant.ExpiresIn < 30*time.Second {
		f.Errorf("expires in %v, want a minute at most", grant.ExpiresIn)
	}
	h := b.holds("k", grant.Token, 0).Holder
	if h.Renewed || h.Lease == (store.LeaseID{}) || h.Lease == a.lease || h.Session != "" || h.Instance != a.id.Instance {
		f.Errorf("holder %+v of a bind:ttl lock", h)
	}
	a.revoke(a.lease)
	b.holds("k", grant.Token, 0)
}

// sameJSON compares JSON by meaning, because a store may reformat it.
func (f *fixture) sameJSON(got []byte, want string) {
	f.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		f.Errorf("data %q: %v", got, err)
		return
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		f.Fatal(err)
	}
	if !reflect.DeepEqual(g, w) {
		f.Errorf("data %s, want %s", got, want)
	}
}
