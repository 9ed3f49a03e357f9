package storetest

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// waitersCases are about Waiting.
func waitersCases() []testCase {
	return []testCase{
		{"waiters are read by key and in the order of the queue", func(f *fixture) {
			a, b := f.pair()
			for _, key := range []string{"b", "a"} {
				a.granted(a.ask(key))
			}
			first, second, third := b.ask("a"), a.ask("a"), a.ask("b")
			first.Session, first.Owner, first.Traceparent = "s", "o", "t"
			b.queued(first, 1)
			a.queued(second, 2)
			a.queued(third, 1)
			got := a.reads(store.WaitQuery{Limit: 9}, "a1", "a2", "b1")
			if w := got[0]; w.Session != "s" || w.Owner != "o" || w.Traceparent != "t" || w.Pod != b.id.Pod || w.Shared || w.WaitingFor < 0 || w.WaitingFor > patience {
				f.Errorf("read %+v", w)
			}
			if got[1].Order <= got[0].Order || got[1].Pod != a.id.Pod {
				f.Errorf("read %+v after %+v", got[1], got[0])
			}
			a.reads(store.WaitQuery{Key: "b", Limit: 9}, "b1")
			a.reads(store.WaitQuery{Key: "none", Limit: 9})
			b.want(b.cancel(first), store.Gone)
			a.reads(store.WaitQuery{Key: "a", Limit: 9}, "a1")
		}},
		{"waiters are paged without gaps, while others leave", func(f *fixture) {
			in := f.instance("a")
			in.granted(in.ask("a"))
			in.granted(in.ask("b"))
			var asks []store.Ask
			for i := range 6 {
				asks = append(asks, in.ask([]string{"a", "b"}[i/3]))
				in.queued(asks[i], i%3+1)
			}
			page := in.reads(store.WaitQuery{Limit: 2}, "a1", "a2")
			in.want(in.cancel(asks[0]), store.Gone)
			page = in.reads(store.WaitQuery{Limit: 2, After: page[1].QueuePlace}, "a2", "b1")
			page = in.reads(store.WaitQuery{Limit: 2, After: page[1].QueuePlace}, "b2", "b3")
			in.reads(store.WaitQuery{Limit: 2, After: page[1].QueuePlace})
			in.reads(store.WaitQuery{Key: "a", Limit: 1, After: store.QueuePlace{}}, "a1")
		}},
		{"a page behind the last waiter returns waiters that come after the queue was empty", func(f *fixture) {
			in := f.instance("a")
			in.granted(in.ask("k"))
			ask := in.ask("k")
			in.queued(ask, 1)
			last := in.reads(store.WaitQuery{Limit: 1}, "k1")[0].QueuePlace
			in.want(in.cancel(ask), store.Gone)
			in.queued(in.ask("k"), 1)
			in.reads(store.WaitQuery{Limit: 1, After: last}, "k1")
		}},
		{"waiters are read by prefix, which is taken literally", func(f *fixture) {
			in := f.instance("a")
			for _, key := range []string{"a%b", "a%c", "aXb", "b"} {
				in.granted(in.ask(key))
				in.queued(in.ask(key), 1)
			}
			in.reads(store.WaitQuery{Prefix: "a%", Limit: 9}, "a%b1", "a%c1")
			in.reads(store.WaitQuery{Prefix: "a", Limit: 9}, "a%b1", "a%c1", "aXb1")
		}},
		{"dead waiters and waiters of other namespaces are left out", func(f *fixture) {
			a, b := f.pair()
			other := f.instanceIn(f.namespace+"-other", "c")
			other.granted(other.ask("k"))
			a.granted(a.ask("k"))
			lease := b.openLease(shortTTL)
			expiring := b.askUnder(lease, "k")
			b.enqueue(expiring)
			b.awaitExpiry(lease, shortTTL)
			a.reads(store.WaitQuery{Limit: 9})
			position := 2
			if b.Traits().Final {
				position = 1 // the ask drops the dead waiter
			}
			b.queued(b.ask("k"), position)
			a.reads(store.WaitQuery{Limit: 9}, fmt.Sprint("k", position))
			other.reads(store.WaitQuery{Limit: 9})
		}},
		sharing("shared waiters are returned with their limit", func(f *fixture, a, _ *instance) {
			a.granted(a.ask("k"))
			a.queued(a.askShared("k", 3), 1)
			if w := a.reads(store.WaitQuery{Limit: 9}, "k1")[0]; !w.Shared || w.Limit != 3 {
				f.Errorf("read %+v", w)
			}
		}),
	}
}

// reads checks which waiters a query returns, each as its key and position.
func (in *instance) reads(q store.WaitQuery, want ...string) []store.Waiting {
	in.Helper()
	found, err := in.Waiting(in.ctx(), q)
	if err != nil {
		in.Fatalf("Waiting(%+v): %v", q, err)
	}
	var got []string
	for _, w := range found {
		got = append(got, fmt.Sprint(w.Key, w.Position))
	}
	if !slices.Equal(got, want) {
		in.Fatalf("Waiting(%+v)\n got %q\nwant %q", q, got, want)
	}
	return found
}
