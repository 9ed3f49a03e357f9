package storetest

import (
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

// oddKeys are keys that some software treats specially: paths, patterns, escapes, numbers, case,
// collation, normal forms, length.
var oddKeys = []string{
	"a", "B", "b", "A", "_", "a_b", "aXb", "a%b", "a b", "a-b", "ab", "a:b", "a.b", " a", "a ",
	"/", "//", "a/b", "a%2Fb", "..", "../..", ".", "%", "%%", "_%", "*", "?", "#", "\\", `\x00`, `'`, `"`, `$1`, "{}",
	"NULL", "0", "1", "10", "9", "resource:database:calendar", "workflow:123", "node:123:fetch",
	"é", "e\u0301", "ß", "ss", "İ", "i", "ключ", "日本語", "\U0001F512", "\uffff", "\U0010FFFF", "z", "~",
	"\u200b", "\u202e", "\ue000",
	strings.Repeat("k", 512), strings.Repeat("k", 511) + "l", strings.Repeat("\U0001F512", 128),
}

func readCases() []testCase {
	return []testCase{
		{"a key that was never used is free", func(f *fixture) {
			in := f.instance("a")
			in.free("never")
		}},
		{"Get answers in the order of its keys", func(f *fixture) {
			in := f.instance("a")
			token := in.granted(in.ask("m")).Token
			locks, err := in.Get(in.ctx(), []string{"z", "m", "a"})
			if err != nil {
				f.Fatal(err)
			}
			if len(locks) != 3 || locks[0].Key != "z" || locks[1].Key != "m" || locks[2].Key != "a" {
				f.Fatalf("got %+v", locks)
			}
			if locks[0].Held || !locks[1].Held || locks[1].Token != token || locks[2].Held {
				f.Errorf("got %+v", locks)
			}
		}},
		{"an expired lock is not held, and not listed", func(f *fixture) {
			in := f.instance("a")
			in.granted(in.askTTL("k", shortTTL))
			in.granted(in.ask("living"))
			in.poll("the end of the lock", func() bool { return !in.get("k").Held })
			if l := in.get("k"); l.Holder.Instance != "" || l.Holder.Lease != (store.LeaseID{}) {
				f.Errorf("a free key with a holder: %+v", l)
			}
			in.lists(store.Query{Limit: 10}, "living")
		}},
		{"a free key shows whether its last grant expired", lastGrant},
		{"namespaces are separate", namespacesApart},
		{"odd keys are keys like any other", func(f *fixture) {
			a, b := f.pair()
			for _, key := range oddKeys {
				ask := a.ask(key)
				token := a.granted(ask).Token
				b.holds(key, token, 0)
				waiter := b.ask(key)
				b.queued(waiter, 1)
				a.released(claim(ask, token))
				b.released(claim(waiter, b.awaitNews(waiter).Token))
				b.free(key)
			}
		}},
		{"List is ordered by bytes and paged without gaps", listPages},
		{"List by prefix takes the prefix literally", listPrefixes},
		{"List by instance returns the locks that were granted to it", func(f *fixture) {
			a, b := f.pair()
			a.granted(a.ask("k1"))
			b.granted(b.ask("k2"))
			a.granted(a.askTTL("k3", longTTL))
			waiter := b.ask("k1")
			b.queued(waiter, 1)
			a.lists(store.Query{Limit: 10, Instance: a.id.Instance}, "k1", "k3")
			a.lists(store.Query{Limit: 10, Instance: b.id.Instance}, "k2")
			a.lists(store.Query{Limit: 10, Instance: "nobody"})
			a.revoke(a.lease)
			b.awaitNews(waiter)
			b.lists(store.Query{Limit: 10, Instance: b.id.Instance}, "k1", "k2")
			b.lists(store.Query{Limit: 10}, "k1", "k2", "k3")
		}},
		{"List returns each lock as Get does", func(f *fixture) {
			a, b := f.pair()
			ask := a.ask("k")
			ask.Session, ask.Owner, ask.Data = "s", "o", []byte(`{"d":1}`)
			a.granted(ask)
			b.queued(b.ask("k"), 1)
			listed := b.lists(store.Query{Limit: 1}, "k")[0]
			got := b.get("k")
			f.sameJSON(listed.Holder.Data, `{"d":1}`)
			if listed.Token != got.Token || listed.QueueLength != 1 || !listed.Held ||
				listed.Holder.Session != "s" || listed.Holder.Owner != "o" || listed.Holder.Lease != a.lease ||
				!listed.Holder.Renewed || listed.Holder.Pod != a.id.Pod ||
				!listed.Holder.AcquiredAt.Equal(got.Holder.AcquiredAt) {
				f.Errorf("listed %+v\n   got %+v", listed, got)
			}
		}},
	}
}

// lists checks which keys a query returns.
func (in *instance) lists(q store.Query, keys ...string) []store.Lock {
	in.Helper()
	locks, err := in.List(in.ctx(), q)
	if err != nil {
		in.Fatalf("List(%+v): %v", q, err)
	}
	got := make([]string, len(locks))
	for i, l := range locks {
		got[i] = l.Key
		if !l.Held {
			in.Errorf("List(%+v) returns %q, which is free", q, l.Key)
		}
	}
	if !slices.Equal(got, keys) {
		in.Fatalf("List(%+v)\n got %q\nwant %q", q, got, keys)
	}
	return locks
}

func namespacesApart(f *fixture) {
	a := f.instance("a")
	b := f.instanceIn(f.namespace+"-other", "b")
	ask := a.ask("k")
	mine := a.granted(ask).Token
	b.free("k")
	theirs := b.granted(b.ask("k")).Token
	b.lists(store.Query{Limit: 10}, "k")
	waiter := b.ask("k")
	b.queued(waiter, 1)
	if mine != theirs {
		b.stands(b.release(claim(ask, mine)), store.UnknownToken)
	}
	a.released(claim(ask, mine))
	a.free("k")
	b.holds("k", theirs, 1)
	b.want(b.check(waiter), store.Queued)
}

func listPages(f *fixture) {
	a, b := f.pair()
	sorted := slices.Clone(oddKeys)
	slices.Sort(sorted)
	if len(slices.Compact(slices.Clone(sorted))) != len(oddKeys) {
		f.Fatal("an odd key is twice in the list")
	}
	for i, key := range oddKeys {
		in := []*instance{a, b}[i%2]
		in.granted(in.ask(key))
	}
	released := a.ask("free")
	a.released(claim(released, a.granted(released).Token))
	for _, limit := range []int{1, 7, len(sorted), 1000} {
		var after string
		for page := range slices.Chunk(sorted, limit) {
			a.lists(store.Query{Limit: limit, After: after}, page...)
			after = page[len(page)-1]
		}
		a.lists(store.Query{Limit: limit, After: after})
	}
	a.lists(store.Query{Limit: 2, After: "A\x7f"}, "B", "NULL")
}

func listPrefixes(f *fixture) {
	in := f.instance("a")
	for _, key := range oddKeys {
		in.granted(in.ask(key))
	}
	prefixes := []string{
		"a", "A", "a%", "a_", "%", "_", "\\", "a ", "", "é", "e", "\uffff", "\U0010FFFF", "\U0001F512",
		"k", strings.Repeat("k", 512), "nothing", "a/", "..", "*", "node:123:",
	}
	for _, prefix := range prefixes {
		var want []string
		for _, key := range oddKeys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		slices.Sort(want)
		in.lists(store.Query{Limit: 1000, Prefix: prefix}, want...)
		if len(want) > 2 {
			in.lists(store.Query{Limit: 2, Prefix: prefix, After: want[0]}, want[1:3]...)
		}
	}
	in.lists(store.Query{Limit: 10, Prefix: "a", After: "b"})
}

// lastGrant: a watcher that missed the news can read how the grant ended.
func lastGrant(f *fixture) {
	a, b := f.pair()
	ask := a.ask("released")
	token := a.granted(ask).Token
	a.released(claim(ask, token))
	if l := b.get("released"); l.Held || l.Expired || l.Token != 0 && l.Token != token {
		f.Errorf("after a release: %+v", l)
	}
	if l := b.get("never"); l.Held || l.Expired || l.Token != 0 {
		f.Errorf("a key that was never used: %+v", l)
	}
	withdrawn := a.ask("withdrawn")
	a.granted(withdrawn)
	a.withdraw(withdrawn)
	if l := b.get("withdrawn"); l.Held || l.Expired {
		f.Errorf("after a withdrawal: %+v", l)
	}
	ended := map[string]int64{
		"expired":  a.granted(a.askTTL("expired", shortTTL)).Token,
		"reaped":   a.granted(a.ask("reaped")).Token,
		"regained": a.granted(a.ask("regained")).Token,
	}
	a.revoke(a.lease)
	for key, token := range ended {
		b.poll("the end of "+key, func() bool { return !b.get(key).Held })
		if l := b.get(key); !l.Expired || l.Token != token {
			f.Errorf("%s: %+v, want expired under %d", key, l, token)
		}
	}
	next := b.granted(b.ask("regained")).Token
	if l := b.holds("regained", next, 0); l.Expired {
		f.Errorf("a held lock: %+v", l)
	}
}
