package deadlock_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/internal/deadlock"
)

func session(n int) deadlock.Party {
	if n == 0 {
		return deadlock.Party{}
	}
	return deadlock.Party{Pod: fmt.Sprint("web-", n%2), Session: fmt.Sprint("s", n)}
}

func hold(n int) deadlock.Hold   { return deadlock.Hold{Party: session(n)} }
func share(n int) deadlock.Hold  { return deadlock.Hold{Party: session(n), Shared: true} }
func writer(n int) deadlock.Call { return deadlock.Call{Party: session(n)} }
func reader(n int) deadlock.Call { return deadlock.Call{Party: session(n), Shared: true} }
func placed(n, limit int) deadlock.Call {
	return deadlock.Call{Party: session(n), Shared: true, Limit: limit}
}

func key(name string, holds []deadlock.Hold, calls ...deadlock.Call) deadlock.Key {
	return deadlock.Key{Name: name, Holds: holds, Calls: calls}
}

type holds = []deadlock.Hold

// told is a circle in short: "s1 a s2 b", s1 waits for a, which s2 holds, who waits for b, which s1 holds.
func told(circle []deadlock.Step) (text string) {
	for i, s := range circle {
		if i > 0 {
			text += " "
		}
		if text += s.Call.Party.Session + s.Call.Party.Owner + " " + s.Key; s.Ahead != nil {
			text += "<" + s.Ahead.Party.Session
		}
	}
	return text
}

func TestSearch(t *testing.T) {
	thread := func(n int, owner string) deadlock.Party {
		p := session(n)
		p.Owner = owner
		return p
	}
	for name, test := range map[string]struct {
		keys []deadlock.Key
		want []string
	}{
		"nothing":       {},
		"a line":        {[]deadlock.Key{key("a", holds{hold(1)}, writer(2), writer(3)), key("b", holds{hold(2)}, writer(4))}, nil},
		"two":           {[]deadlock.Key{key("a", holds{hold(1)}, writer(2)), key("b", holds{hold(2)}, writer(1))}, []string{"s2 a s1 b"}},
		"three":         {[]deadlock.Key{key("a", holds{hold(1)}, writer(2)), key("b", holds{hold(2)}, writer(3)), key("c", holds{hold(3)}, writer(1))}, []string{"s2 a s1 c s3 b"}},
		"two circles":   {[]deadlock.Key{key("a", holds{hold(1)}, writer(2)), key("b", holds{hold(2)}, writer(1)), key("c", holds{hold(3)}, writer(4)), key("d", holds{hold(4)}, writer(3))}, []string{"s2 a s1 b", "s4 c s3 d"}},
		"a tail":        {[]deadlock.Key{key("0", holds{hold(2)}, writer(5)), key("a", holds{hold(1)}, writer(2)), key("b", holds{hold(2)}, writer(1))}, []string{"s2 a s1 b"}},
		"no session":    {[]deadlock.Key{key("a", holds{hold(0)}, writer(0)), key("b", holds{hold(0)}, writer(0))}, nil},
		"readers":       {[]deadlock.Key{key("a", holds{share(1), share(2)}, writer(3)), key("b", holds{hold(3)}, writer(2))}, []string{"s3 a s2 b"}},
		"behind writer": {[]deadlock.Key{key("a", holds{share(1)}, writer(9), reader(2)), key("b", holds{hold(2)}, writer(1))}, []string{"s1 b s2 a<s9"}},
		"a free place":  {[]deadlock.Key{key("a", holds{share(1), share(8)}, placed(2, 2)), key("b", holds{hold(2)}, writer(1))}, nil},
		"all places":    {[]deadlock.Key{key("a", holds{share(1), share(3)}, placed(2, 2)), key("b", holds{hold(2)}, writer(1)), key("c", holds{hold(2)}, writer(3))}, []string{"s2 a s1 b"}},
		"a thread":      {[]deadlock.Key{key("a", holds{hold(1)}, writer(1), writer(2)), key("b", holds{hold(2)}, writer(3))}, nil},
		"itself":        {[]deadlock.Key{key("a", holds{{Party: thread(1, "t")}}, deadlock.Call{Party: thread(1, "t")})}, []string{"s1t a"}},
		"other threads": {[]deadlock.Key{key("a", holds{{Party: thread(1, "t")}}, writer(2)), key("b", holds{hold(2)}, deadlock.Call{Party: thread(1, "u")})}, nil},
	} {
		var got []string
		for _, circle := range deadlock.Search(test.keys) {
			got = append(got, told(circle))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// drawn is a table of locks as it may be: with a holder, or with some that share, and a queue whose head does not fit.
func drawn(t *rapid.T) (keys []deadlock.Key) {
	anyone := rapid.IntRange(0, 8)
	for n := range rapid.IntRange(0, 6).Draw(t, "keys") {
		limit := rapid.IntRange(0, 3).Draw(t, "limit")
		k := deadlock.Key{Name: fmt.Sprint("k", n)}
		if rapid.Bool().Draw(t, "exclusive") {
			k.Holds = append(k.Holds, hold(anyone.Draw(t, "holder")))
		} else {
			for range rapid.IntRange(1, max(limit, 1)).Draw(t, "shares") {
				k.Holds = append(k.Holds, share(anyone.Draw(t, "holder")))
			}
		}
		for range rapid.IntRange(1, 4).Draw(t, "calls") {
			c := writer(anyone.Draw(t, "waiter"))
			if rapid.Bool().Draw(t, "shared") {
				c.Shared, c.Limit = true, limit
			}
			k.Calls = append(k.Calls, c)
		}
		keys = append(keys, k)
	}
	return keys
}

// table plays the same in the simplest way: it hands on one lock at a time, in an order of its own.
type table struct {
	t    *rapid.T
	keys []deadlock.Key
}

func (b *table) waits(p deadlock.Party) bool {
	for _, k := range b.keys {
		for _, c := range k.Calls {
			if c.Party == p {
				return true
			}
		}
	}
	return false
}

// moves are what can happen next.
func (b *table) moves() (moves []func()) {
	for i := range b.keys {
		k := &b.keys[i]
		for j, h := range k.Holds {
			if !b.waits(h.Party) {
				moves = append(moves, func() { k.Holds = slices.Delete(k.Holds, j, j+1) })
			}
		}
		if len(k.Calls) == 0 {
			continue
		}
		head, alone := k.Calls[0], len(k.Holds) == 0
		if alone || head.Shared && k.Holds[0].Shared && (head.Limit == 0 || len(k.Holds) < head.Limit) {
			moves = append(moves, func() { k.Calls = k.Calls[1:] })
		}
	}
	return moves
}

// stuck are the sessions that wait at the end.
func (b *table) stuck() map[deadlock.Party]bool {
	// A call of no session, and one for a key that its own session holds, are no reason for a session to wait.
	for i := range b.keys {
		k := &b.keys[i]
		b.keys[i].Calls = slices.Clone(k.Calls)
		k.Holds = slices.Clone(k.Holds)
		for j, c := range k.Calls {
			if c.Party == session(0) || slices.ContainsFunc(k.Holds, func(h deadlock.Hold) bool { return h.Party == c.Party }) {
				k.Calls[j].Party = deadlock.Party{Session: "nobody"}
			}
		}
	}
	for moves := b.moves(); len(moves) > 0; moves = b.moves() {
		rapid.SampledFrom(moves).Draw(b.t, "move")()
	}
	stuck := map[deadlock.Party]bool{}
	for _, k := range b.keys {
		for _, c := range k.Calls {
			stuck[c.Party] = true
		}
	}
	delete(stuck, deadlock.Party{Session: "nobody"})
	return stuck
}

func TestCirclesAreOfStuckSessions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawn(t)
		circles := deadlock.Search(keys)
		stuck := (&table{t: t, keys: slices.Clone(keys)}).stuck()
		if (len(circles) > 0) != (len(stuck) > 0) {
			t.Fatalf("%d circles, stuck are %v", len(circles), stuck)
		}
		met := map[deadlock.Party]bool{}
		for _, circle := range circles {
			for i, s := range circle {
				if next := circle[(i+1)%len(circle)].Call.Party; s.Holder.Party != next || !stuck[s.Call.Party] || met[s.Call.Party] {
					t.Fatalf("step %d of %s: the holder is %v, next is %v; stuck are %v", i, told(circle), s.Holder.Party, next, stuck)
				}
				met[s.Call.Party] = true
				checkStep(t, keys, &s)
			}
		}
		for range 3 {
			if again := deadlock.Search(keys); !slices.EqualFunc(again, circles, func(a, b []deadlock.Step) bool { return told(a) == told(b) }) {
				t.Fatalf("%v, and then %v", circles, again)
			}
		}
	})
}

// checkStep checks that a step is one of the table: the holder holds the key, the call waits for it, and one of the two is
// exclusive, or no place is free, or an exclusive call is ahead.
func checkStep(t *rapid.T, keys []deadlock.Key, s *deadlock.Step) {
	k := keys[slices.IndexFunc(keys, func(k deadlock.Key) bool { return k.Name == s.Key })]
	at := slices.Index(k.Calls, s.Call)
	if at < 0 || !slices.Contains(k.Holds, s.Holder) {
		t.Fatalf("%+v is not in %+v", s, k)
	}
	together := s.Call.Shared && s.Holder.Shared && (s.Call.Limit == 0 || s.Others+1 < s.Call.Limit)
	if together != (s.Ahead != nil) {
		t.Fatalf("%+v: a call is ahead, or the call does not fit", s)
	}
	if s.Ahead != nil && s.Ahead.Shared {
		t.Fatalf("%+v: a shared call is ahead", s)
	}
}

// Sessions that wait only for keys behind all that they hold never wait in a circle.
func TestOrderedSessionsDoNotWaitInACircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawn(t)
		last := map[deadlock.Party]int{}
		for n, k := range keys {
			for _, h := range k.Holds {
				last[h.Party] = n
			}
		}
		for n := range keys {
			keys[n].Calls = slices.DeleteFunc(keys[n].Calls, func(c deadlock.Call) bool {
				most, holds := last[c.Party]
				return holds && n <= most
			})
		}
		if circles := deadlock.Search(keys); len(circles) > 0 {
			t.Fatalf("%v", circles)
		}
	})
}

// A circle is found among others that wait, however long it is.
func TestAPlantedCircleIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := drawn(t)
		length := rapid.IntRange(2, 20).Draw(t, "length")
		for n := range length {
			k := key(fmt.Sprint("planted", n), holds{hold(100 + n)}, writer(100+(n+1)%length))
			for range rapid.IntRange(0, 2).Draw(t, "behind") {
				k.Calls = append(k.Calls, writer(rapid.IntRange(0, 8).Draw(t, "waiter")))
			}
			keys = append(keys, k)
		}
		keys = rapid.Permutation(keys).Draw(t, "order")
		for _, circle := range deadlock.Search(keys) {
			if circle[0].Key[:1] == "p" && len(circle) == length {
				return
			}
		}
		t.Fatalf("%d keys", len(keys))
	})
}

// 10,000 calls for one key take no time that grows with their square.
func BenchmarkSearch(b *testing.B) {
	line := key("a", holds{hold(1)})
	for n := range 10_000 {
		line.Calls = append(line.Calls, writer(n+2))
	}
	keys := []deadlock.Key{line, key("b", holds{hold(2)}, writer(1))}
	for b.Loop() {
		if circles := deadlock.Search(keys); len(circles) != 1 {
			b.Fatal(circles)
		}
	}
}
