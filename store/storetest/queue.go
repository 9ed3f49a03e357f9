package storetest

import (
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Proves: promise 5
func queueCases() []testCase {
	return []testCase{
		{"an ask that waits gets a free key at once", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			grant := in.want(in.enqueue(ask), store.Granted)
			in.holds("k", grant.Token, 0)
			in.released(claim(ask, grant.Token))
		}},
		{"waiters are served in the order they came, across instances", fifo},
		{"asks for one key in one Enqueue are queued in their order", func(f *fixture) {
			a, b := f.pair()
			for _, held := range []bool{true, false} {
				key := map[bool]string{true: "held", false: "free"}[held]
				var waiting []store.Ask
				token := int64(0)
				holder := a.ask(key)
				if held {
					token = a.granted(holder).Token
				}
				for range 5 {
					waiting = append(waiting, b.ask(key))
				}
				answers, err := b.Enqueue(b.ctx(), waiting)
				if err != nil || len(answers) != len(waiting) {
					f.Fatalf("got %+v, %v", answers, err)
				}
				if !held {
					holder, token = waiting[0], b.want(answers[0], store.Granted).Token
					waiting, answers = waiting[1:], answers[1:]
				}
				for i, answer := range answers {
					if b.want(answer, store.Queued); answer.Position != i+1 {
						f.Errorf("%s: ask %d has position %d", key, i, answer.Position)
					}
				}
				for _, waiter := range waiting {
					b.released(claim(holder, token))
					holder, token = waiter, b.awaitNews(waiter).Token
				}
			}
		}},
		{"a queued ask returns its position and the holder", func(f *fixture) {
			a, b := f.pair()
			grant := a.granted(a.ask("k"))
			a.queued(a.ask("k"), 1)
			waiter := b.ask("k")
			for _, got := range []store.Answer{b.queued(waiter, 2), b.want(b.check(waiter), store.Queued)} {
				if got.Lock.Token != grant.Token || got.Lock.Key != "k" ||
					got.Lock.Holder.Instance != a.id.Instance || got.Lock.Holder.ExpiresIn <= 0 {
					f.Errorf("queued as %+v", got)
				}
			}
			if denied := b.want(b.acquire(b.ask("k")), store.Held); denied.Lock.QueueLength != 2 {
				f.Errorf("queue length %d, want 2", denied.Lock.QueueLength)
			}
			b.holds("k", grant.Token, 2)
		}},
		{"nobody overtakes", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(claim(ask, token))
			denied := a.want(a.acquire(a.ask("k")), store.Held)
			if denied.Lock.Holder.Instance != b.id.Instance {
				f.Fatalf("held by %+v, want the waiter", denied.Lock.Holder)
			}
			a.queued(a.ask("k"), 1)
			b.awaitNews(waiter)
		}},
		{"a cancelled waiter leaves, and the waiters behind move up", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			first, second, third := b.ask("k"), a.ask("k"), b.ask("k")
			b.queued(first, 1)
			a.queued(second, 2)
			b.queued(third, 3)
			b.gaveUp(b.cancel(first), 1)
			a.gaveUp(a.cancel(second), 1)
			b.want(b.check(first), store.Gone)
			b.want(b.check(third), store.Queued)
			b.queued(third, 1)
			a.holds("k", token, 1)
			a.released(claim(ask, token))
			b.awaitNews(third)
		}},
		{"a release frees the key when all waiters have cancelled", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			b.gaveUp(b.cancel(waiter), 1)
			b.gaveUp(b.cancel(waiter), 0)
			a.released(claim(ask, token))
			b.free("k")
			a.granted(a.ask("k"))
		}},
		{"a cancel after the grant reports the grant, and the grant stays", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(claim(ask, token))
			grant := b.want(b.cancel(waiter), store.Granted)
			b.holds("k", grant.Token, 0)
			b.released(claim(waiter, grant.Token))
		}},
		{"an unknown attempt, and one that has ended, are reported as gone", func(f *fixture) {
			in := f.instance("a")
			ask := in.ask("k")
			in.want(in.check(ask), store.Gone)
			in.want(in.cancel(ask), store.Gone)
			token := in.granted(ask).Token
			in.want(in.check(in.ask("k")), store.Gone)
			in.released(claim(ask, token))
			in.want(in.check(ask), store.Gone)
			in.want(in.cancel(ask), store.Gone)
		}},
		{"Check and the news report the same grant", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(claim(ask, token))
			checked, heard := b.want(b.check(waiter), store.Granted), b.awaitNews(waiter)
			if checked.Token != heard.Token || !checked.AcquiredAt.Equal(heard.AcquiredAt) {
				f.Errorf("check %+v, news %+v", checked, heard)
			}
		}},
		{"news is sent only to the waiter's instance", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			token := a.granted(ask).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(claim(ask, token))
			b.awaitNews(waiter)
			select {
			case n := <-a.newsOf(waiter.ID):
				f.Errorf("the releasing instance received %+v", n)
			default:
			}
		}},
		{"an instance that listens again receives news again", func(f *fixture) {
			a, b := f.pair()
			for range 3 {
				b.Listen(false)
				b.Listen(false)
				b.Listen(true)
				ask := a.ask("k")
				token := a.granted(ask).Token
				waiter := b.ask("k")
				b.queued(waiter, 1)
				a.released(claim(ask, token))
				b.released(claim(waiter, b.awaitNews(waiter).Token))
			}
		}},
		{"a bind:ttl waiter's TTL starts at the hand-off", bindTTLWaiter},
		{"a bind:ttl lock is handed off like any other", func(f *fixture) {
			a, b := f.pair()
			token := a.granted(a.askTTL("k", longTTL)).Token
			waiter := b.ask("k")
			b.queued(waiter, 1)
			a.released(store.Claim{Key: "k", Token: token})
			if got := b.awaitNews(waiter); got.Token <= token {
				f.Errorf("tokens %d, then %d", token, got.Token)
			}
		}},
		{"a long queue keeps its order while others leave its middle", longQueue},
		{"one lease has waiters for many keys", func(f *fixture) {
			a, b := f.pair()
			keys := []string{"k1", "k2", "k3"}
			waiters := map[string]store.Ask{}
			claims := map[string]store.Claim{}
			for _, k := range keys {
				ask := a.ask(k)
				claims[k] = claim(ask, a.granted(ask).Token)
				waiters[k] = b.ask(k)
				b.queued(waiters[k], 1)
			}
			a.released(claims["k2"])
			b.awaitNews(waiters["k2"])
			b.want(b.check(waiters["k1"]), store.Queued)
			b.want(b.check(waiters["k3"]), store.Queued)
		}},
	}
}

// gaveUp checks that a cancelled waiter is gone, and its last position. 0 means that it was not
// queued.
func (in *instance) gaveUp(a store.Answer, place int) {
	in.Helper()
	if in.want(a, store.Gone); a.Position != place {
		in.Fatalf("cancelled at position %d, want %d", a.Position, place)
	}
}

func fifo(f *fixture) {
	a, b := f.pair()
	holder := a.ask("k")
	token := a.granted(holder).Token
	type place struct {
		in  *instance
		ask store.Ask
	}
	line := make([]place, 7)
	for i := range line {
		in := []*instance{a, b, b}[i%3]
		line[i] = place{in, in.ask("k")}
		in.queued(line[i].ask, i+1)
	}
	a.released(claim(holder, token))
	for i, p := range line {
		grant := p.in.awaitNews(p.ask)
		if grant.Token <= token {
			f.Fatalf("token %d after %d", grant.Token, token)
		}
		token = grant.Token
		for behind, q := range line[i+1:] {
			q.in.queued(q.ask, behind+1)
		}
		p.in.released(claim(p.ask, token))
	}
	a.free("k")
}

func bindTTLWaiter(f *fixture) {
	a, b := f.pair()
	holder := a.ask("k")
	token := a.granted(holder).Token
	waiter := b.ask("k")
	waiter.TTL = time.Minute
	b.queued(waiter, 1)
	shown := b.get("k").Holder.HeldFor
	b.poll("some waiting", func() bool { return b.get("k").Holder.HeldFor > shown+pause })
	a.released(claim(holder, token))
	grant := b.awaitNews(waiter)
	if grant.ExpiresIn > time.Minute || grant.ExpiresIn < 40*time.Second {
		f.Errorf("expires in %v, want a minute from the hand-off", grant.ExpiresIn)
	}
	h := b.holds("k", grant.Token, 0).Holder
	if h.Renewed || h.Lease == b.lease || h.Lease == (store.LeaseID{}) || h.Instance != b.id.Instance {
		f.Errorf("holder %+v", h)
	}
	b.revoke(b.lease) // held the position, but does not hold the lock
	a.holds("k", grant.Token, 0)
	a.released(store.Claim{Key: "k", Token: grant.Token})
}

// longQueue lets every third waiter of a long queue leave, in another order than that of the queue.
// The other waiters are served.
func longQueue(f *fixture) {
	a, b := f.pair()
	holder := a.ask("k")
	token := a.granted(holder).Token
	const length = 45
	line := make([]store.Ask, length)
	for i := range line {
		line[i] = b.ask("k")
		b.queued(line[i], i+1)
	}
	for i := length - 2; i > 0; i -= 3 { // 43, 40, … 1
		b.gaveUp(b.cancel(line[i]), i+1)
	}
	left := 0
	for i, ask := range line {
		if i%3 == 1 {
			continue
		}
		left++
		b.queued(ask, left)
	}
	a.holds("k", token, left)
	a.released(claim(holder, token))
	for i, ask := range line {
		if i%3 == 1 {
			b.want(b.check(ask), store.Gone)
			continue
		}
		token = b.awaitNews(ask).Token
		b.released(claim(ask, token))
	}
	a.free("k")
}
