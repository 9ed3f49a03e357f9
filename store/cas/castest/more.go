package castest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// tokensGrow: every swap reserves tokens above those of all swaps of this key before, also through deletions and for
// another backend.
func tokensGrow(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	next := int64(1)
	version := int64(0)
	for i := range 20 {
		by := c
		if i%3 == 1 {
			by = other
		}
		remove := i%4 == 3
		r := by.done(cas.Swap{Key: "ns/key", Version: version, Data: []byte("x"), Delete: remove, Tokens: i % 3})
		if version = r.Version; remove {
			continue // it reserves no tokens
		}
		if r.Base < next {
			t.Fatalf("swap %d reserves tokens from %d, but those below %d are given away", i, r.Base, next)
		}
		if loaded := other.load("ns/key"); r.Tokens < i%3 || loaded.Tokens != r.Tokens {
			t.Fatalf("swap %d reserves %d tokens, as loaded %d; it needs %d", i, r.Tokens, loaded.Tokens, i%3)
		}
		if next = r.Base + int64(r.Tokens); next >= 1<<53 {
			t.Fatalf("tokens up to %d do not fit into a JSON number", next)
		}
	}
}

// tokensOfOneCall: the swaps of a call have tokens of their own. A key that is granted often may be far ahead of the others.
func tokensOfOneCall(t *testing.T, c *client) {
	other := open(t, c.server, "other") // it has not seen the tokens of c, so its calls do not lift those of all keys
	ahead := c.done(cas.Swap{Key: "ns/ahead", Data: []byte("x"), Tokens: cas.TokensPerSwap})
	for range 30 {
		ahead = c.done(cas.Swap{Key: "ns/ahead", Version: ahead.Version, Data: []byte("x"), Tokens: cas.TokensPerSwap})
	}
	done, err := other.Swap(c.ctx, []cas.Swap{
		{Key: "ns/other", Data: []byte("x"), Tokens: 1},
		{Key: "ns/ahead", Version: ahead.Version, Data: []byte("x"), Tokens: 1},
		{Key: "ns/third", Data: []byte("x"), Tokens: 1},
	})
	c.must(err)
	for i := range done {
		if !done[i].Done {
			t.Fatalf("swap %d was not carried out", i)
		}
	}
	if got := done[1].Record; got.Base < ahead.Base+int64(ahead.Tokens) || got.Version <= ahead.Version {
		t.Errorf("version %d, tokens from %d on; before: version %d, tokens from %d to %d", got.Version, got.Base, ahead.Version, ahead.Base, ahead.Base+int64(ahead.Tokens))
	}
	for i, key := range []string{"ns/other", "ns/ahead", "ns/third"} {
		if loaded := c.load(key); loaded.Version != done[i].Record.Version || loaded.Base != done[i].Record.Base {
			t.Errorf("%s: loaded version %d, base %d; the swap said %d, %d", key, loaded.Version, loaded.Base, done[i].Record.Version, done[i].Record.Base)
		}
	}
}

// tokensRaised: after RaiseTokens, all tokens are above those of the store before. Those of each key still grow.
func tokensRaised(t *testing.T, c *client) {
	old := c.done(cas.Swap{Key: "ns/old", Data: []byte("x"), Tokens: 3})
	gone := c.done(cas.Swap{Key: "ns/gone", Data: []byte("x"), Tokens: 3})
	c.done(cas.Swap{Key: "ns/gone", Version: gone.Version, Delete: true})
	first := old.Base + 1<<50
	c.must(c.RaiseTokens(c.ctx, first))
	c.must(c.RaiseTokens(c.ctx, first-7)) // lowers nothing
	for i, by := range []*client{c, open(t, c.server, "later"), open(t, c.server, "other")} {
		by.open(ttl, "own")
		loaded := by.load("ns/old")
		written := by.done(cas.Swap{Key: "ns/old", Version: loaded.Version, Data: []byte("y"), Tokens: 2, Letters: []cas.Letter{{To: "one", Key: "ns/old", Body: []byte("z")}}})
		if written.Base < first || written.Base < loaded.Base+int64(loaded.Tokens) {
			t.Errorf("instance %d: the tokens of a known key begin at %d after %d, and were raised to %d", i, written.Base, loaded.Base, first)
		}
		if again := by.load("ns/old"); again.Base != written.Base {
			t.Errorf("instance %d: tokens from %d on were reserved, and are read as %d", i, written.Base, again.Base)
		}
		if l := await.Receive(t, c.letters, "the letter"); l.Base != written.Base || string(l.Body) != "z" {
			t.Errorf("instance %d: a letter says %d, its record %d", i, l.Base, written.Base)
		}
		back := by.done(cas.Swap{Key: "ns/gone", Data: []byte("x"), Tokens: 3})
		if back.Base < first {
			t.Errorf("instance %d: the tokens of a deleted key begin at %d, and were raised to %d", i, back.Base, first)
		}
		by.done(cas.Swap{Key: "ns/gone", Version: back.Version, Delete: true})
	}
	// Nobody has a record in most partitions now, and the new instance has no lease: the next token counts them nevertheless.
	last := int64(0)
	for i := range 32 {
		key := fmt.Sprintf("ns/%d", i)
		r := c.done(cas.Swap{Key: key, Data: []byte("x"), Tokens: 100 + i})
		last = max(last, r.Base+int64(r.Tokens))
		c.done(cas.Swap{Key: key, Version: r.Version, Delete: true})
	}
	asker := open(t, c.server, "asker")
	next, err := asker.NextToken(asker.ctx)
	if c.must(err); next < last {
		t.Errorf("the next token is %d, and those below %d were reserved", next, last)
	}
}

func scan(t *testing.T, c *client) {
	for _, name := range []string{"a/1", "b/1", "b/10", "b/2", "b0", "b/\x00", "b/ä", "c/1"} {
		lease := uuid.New()
		c.done(cas.Swap{Key: name, Data: []byte("data of " + name), Leases: []store.LeaseID{lease}})
	}
	gone := c.done(cas.Swap{Key: "b/gone", Data: []byte("x")})
	c.done(cas.Swap{Key: "b/gone", Version: gone.Version, Delete: true})
	for _, test := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"b/", "", 100, []string{"b/\x00", "b/1", "b/10", "b/2", "b/ä"}},
		{"b/", "b/1", 100, []string{"b/10", "b/2", "b/ä"}},
		{"b/", "b/1", 1, []string{"b/10"}},
		{"b/", "a", 2, []string{"b/\x00", "b/1"}},
		{"b/", "c/1", 100, nil},
		{"b/", "b/ä", 100, nil},
		{"", "", 2, []string{"a/1", "b/\x00"}},
		{"", "b0", 100, []string{"c/1"}},
		{"d", "", 100, nil},
	} {
		found, err := c.Scan(c.ctx, test.prefix, test.after, test.limit)
		c.must(err)
		var names []string
		for _, r := range found {
			names = append(names, r.Key)
			if r.Version == 0 || string(r.Data) != "data of "+r.Key || len(r.Leases) != 1 {
				t.Errorf("scanned %+v", r)
			}
		}
		if !slices.Equal(names, test.want) {
			t.Errorf("a scan of %q after %q found %q, want %q", test.prefix, test.after, names, test.want)
		}
	}
}

func leases(t *testing.T, c *client) {
	one, two, never := c.open(ttl, "one"), c.open(ttl, ""), uuid.New()
	if !c.alive(one) || !c.alive(two) || c.alive(never) {
		t.Errorf("alive: %v, %v, want true, true; one that was never opened: %v", c.alive(one), c.alive(two), c.alive(never))
	}
	renewed, _, err := c.Renew(c.ctx, []store.LeaseID{one, never, two})
	c.must(err)
	if !slices.Equal(renewed, []store.LeaseID{one, two}) {
		t.Errorf("renewed %v, want %v", renewed, []store.LeaseID{one, two})
	}
	_, err = c.OpenLeases(c.ctx, []cas.NewLease{{NewLease: store.NewLease{ID: one, TTL: ttl}, Instance: "one"}}) // again
	c.must(err)
	if !c.alive(one) {
		t.Error("opened again, and dead")
	}
	c.must(c.Revoke(c.ctx, []store.LeaseID{one, never}))
	c.must(c.Revoke(c.ctx, []store.LeaseID{one}))
	if c.alive(one) || !c.alive(two) {
		t.Errorf("after the end of one: %v, %v", c.alive(one), c.alive(two))
	}
	renewed, _, err = c.Renew(c.ctx, []store.LeaseID{one, two})
	c.must(err)
	if !slices.Equal(renewed, []store.LeaseID{two}) {
		t.Errorf("renewed %v, want %v", renewed, []store.LeaseID{two})
	}
	if c.alive(one) {
		t.Error("a renewal has opened a dead lease")
	}
	var many []cas.NewLease
	var ids []store.LeaseID
	for range 150 {
		ids = append(ids, uuid.New())
		many = append(many, cas.NewLease{NewLease: store.NewLease{ID: ids[len(ids)-1], TTL: ttl}})
	}
	_, err = c.OpenLeases(c.ctx, many)
	c.must(err)
	_, states, err := c.Load(c.ctx, nil, ids)
	c.must(err)
	for i, state := range states {
		if !state.Alive {
			t.Fatalf("lease %d of %d is dead", i, len(ids))
		}
	}
	if renewed, _, err = c.Renew(c.ctx, ids); err != nil || len(renewed) != len(ids) {
		t.Errorf("a renewal of %d leases renewed %d: %v", len(ids), len(renewed), err)
	}
	c.must(c.Revoke(c.ctx, ids))
	if c.alive(ids[0]) || c.alive(ids[149]) {
		t.Error("revoked, and alive")
	}
}

// leaseEnds: a lease that nobody renews lives for its TTL, and not much longer. Its record stays.
func leaseEnds(t *testing.T, c *client) {
	began := time.Now()
	lease := c.open(short, "one")
	written := c.done(cas.Swap{Key: "ns/key", Data: []byte("held"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}})
	for c.alive(lease) {
		time.Sleep(5 * time.Millisecond)
		if time.Since(began) > await.Patience {
			t.Fatal("the lease does not end")
		}
	}
	if lived := time.Since(began); lived < short {
		t.Errorf("a lease of %s lived %s", short, lived)
	}
	r := c.load("ns/key")
	if r.Version != written.Version || len(r.States) != 1 || r.States[0].Alive {
		t.Errorf("the record of a dead lease: %+v", r)
	}
	if c.swap(cas.Swap{Key: "ns/key", Version: written.Version, Data: []byte("x"), Living: []store.LeaseID{lease}})[0].Done {
		t.Error("a dead lease counts as living")
	}
	if ids, err := c.Opened(c.ctx, "one"); err != nil || len(ids) != 0 {
		t.Errorf("the instance still has opened %v, %v", ids, err)
	}
}

// renewalsKeep: a lease that is renewed outlives its TTL.
func renewalsKeep(t *testing.T, c *client) {
	lease := c.open(short, "one")
	for began := time.Now(); time.Since(began) < 2*short; time.Sleep(short / 8) {
		renewed, _, err := c.Renew(c.ctx, []store.LeaseID{lease})
		c.must(err)
		if len(renewed) != 1 || !c.alive(lease) {
			t.Fatalf("a renewed lease died after %s", time.Since(began))
		}
	}
}

// whatIsLeft: the rest of a lease's time is never overstated, because a holder may be told so, and a renewal is soon seen.
func whatIsLeft(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	began := time.Now()
	lease := c.open(10*time.Second, "one")
	opened := time.Now()
	left := func(by *client) time.Duration {
		_, states, err := by.Load(by.ctx, nil, []store.LeaseID{lease})
		by.must(err)
		return states[0].Left
	}
	for _, by := range []*client{c, other} {
		if now := left(by); now <= 0 || time.Now().Add(now).After(opened.Add(10*time.Second)) {
			t.Errorf("%s after a lease of 10s was opened it has %s left", time.Since(began), now)
		}
	}
	await.Until(t, "a second or two have passed", func() bool { return left(c) < 8*time.Second })
	_, _, err := c.Renew(c.ctx, []store.LeaseID{lease})
	c.must(err)
	for _, by := range []*client{c, other} {
		await.Until(t, "the renewal is seen", func() bool { return left(by) > 8*time.Second })
	}
}

func openedLeases(t *testing.T, c *client) {
	mine := []store.LeaseID{c.open(ttl, "pod/a"), c.open(ttl, "pod/a"), c.open(ttl, "pod/a")}
	c.open(ttl, "pod")
	c.open(ttl, "pod/a/b")
	c.open(ttl, "pod/ab")
	plain := c.open(ttl, "")
	c.must(c.Revoke(c.ctx, mine[:1]))
	found, err := c.Opened(c.ctx, "")
	if c.must(err); slices.Contains(found, plain) {
		t.Error("the lease of a single lock counts as opened by an instance without a name")
	}
	found, err = c.Opened(c.ctx, "pod/a")
	c.must(err)
	want := slices.Clone(mine[1:])
	byText := func(a, b store.LeaseID) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(found, byText)
	slices.SortFunc(want, byText)
	if !slices.Equal(found, want) {
		t.Errorf("opened by the instance: %v, want %v", found, want)
	}
}

func letters(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	first := c.done(cas.Swap{Key: "ns/key", Data: []byte("1"), Letters: []cas.Letter{
		{To: "one", Key: "ns/key", Body: []byte("to one")},
		{To: "other", Key: "ns/key", Body: []byte("to other")},
		{To: "nobody", Key: "ns/key", Body: []byte("to nobody")},
	}})
	for name, reader := range map[string]*client{"one": c, "other": other} {
		l := await.Receive(t, reader.letters, "a letter")
		if l.To != name || l.Key != "ns/key" || string(l.Body) != "to "+name || l.Base != first.Base {
			t.Errorf("%s got %+v", name, l)
		}
	}
	other.done(cas.Swap{Key: "ns/key", Version: first.Version, Delete: true, Letters: []cas.Letter{{To: "one", Key: "ns/key", Body: []byte("bye")}}})
	if l := await.Receive(t, c.letters, "a letter"); string(l.Body) != "bye" {
		t.Errorf("with a deletion came %+v", l)
	}
	await.Silent(t, other.letters, "letter")
	await.Silent(t, c.lost, "loss")
}

// hears: once a backend says that it hears, a letter arrives soon. After its end it hears nothing.
func hears(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	c.listens()
	for i := range 5 {
		name := key(i)
		other.done(cas.Swap{Key: name, Data: []byte("x"), Letters: []cas.Letter{{To: "one", Key: name}}})
		began := time.Now()
		await.Receive(t, c.letters, "a letter")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("letter %d took %s", i, took)
		}
	}
	if !c.Hears() {
		t.Error("it does not hear any more")
	}
	c.Stop()
	await.Until(t, "it hears nothing", func() bool { return c.Ready() != nil || !c.Hears() })
}

// listens waits until the backend says that letters arrive soon. One that looks for letters is told that they are needed.
func (c *client) listens() {
	c.t.Helper()
	if e, ok := c.Backend.(cas.Expecter); ok {
		e.Expect(true, false, true)
	}
	await.Until(c.t, "it hears", c.hears)
}

// hears is what the engine's Trait says.
func (c *client) hears() bool { return c.Ready() == nil && c.Hears() }

// lettersInOrder: the letters to an instance about one key come in the order of their swaps.
func lettersInOrder(t *testing.T, c *client) {
	const count = 200
	other := open(t, c.server, "other")
	versions := map[string]int64{}
	for i := range count {
		name := key(i % 3)
		r := other.done(cas.Swap{
			Key: name, Version: versions[name], Data: []byte("x"),
			Letters: []cas.Letter{{To: "one", Key: name, Body: fmt.Append(nil, i)}},
		})
		versions[name] = r.Version
	}
	next := map[string]int{key(0): 0, key(1): 1, key(2): 2}
	for range count {
		l := await.Receive(t, c.letters, "a letter")
		if string(l.Body) != fmt.Sprint(next[l.Key]) {
			t.Fatalf("instead of letter %d about %s came %+v", next[l.Key], l.Key, l)
		}
		next[l.Key] += 3
	}
}

// noLetter: a swap that is not carried out sends nothing.
func noLetter(t *testing.T, c *client) {
	c.done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	if c.swap(cas.Swap{Key: "ns/key", Data: []byte("y"), Letters: []cas.Letter{{To: "one", Key: "ns/key", Body: []byte("wrong")}}})[0].Done {
		t.Fatal("a swap of a new record was carried out on an old one")
	}
	c.done(cas.Swap{Key: "ns/other", Data: []byte("x"), Letters: []cas.Letter{{To: "one", Key: "ns/other", Body: []byte("right")}}})
	if l := await.Receive(t, c.letters, "a letter"); string(l.Body) != "right" {
		t.Errorf("got %+v", l)
	}
}

// postedLetters: letters need no swap, and change no record.
func postedLetters(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	before := c.done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	c.must(c.Post(c.ctx, []cas.Letter{
		{To: "one", Key: "ns/key", Body: []byte("to one")},
		{To: "other", Key: "ns/key", Body: []byte("to other")},
		{To: "other", Key: "ns/none", Body: []byte("also")},
		{To: "nobody", Key: "ns/key", Body: []byte("to nobody")},
	}))
	for _, want := range []struct {
		reader    *client
		key, body string
	}{{c, "ns/key", "to one"}, {other, "ns/key", "to other"}, {other, "ns/none", "also"}} {
		if l := await.Receive(t, want.reader.letters, "a letter"); l.Key != want.key || string(l.Body) != want.body {
			t.Errorf("instead of %q about %s came %+v", want.body, want.key, l)
		}
	}
	await.Silent(t, other.letters, "letter")
	await.Silent(t, c.lost, "loss")
	if r := c.load("ns/key"); r.Version != before.Version || c.load("ns/none").Version != 0 {
		t.Errorf("letters changed a record: %+v", r)
	}
}

// names: instances and keys whose names are beginnings of others do not meet.
func names(t *testing.T, c *client) {
	readers := map[string]*client{}
	for _, name := range []string{"pod", "pod/a", "pod/a/b", "pod%2Fa", "pöd {x}*"} {
		readers[name] = open(t, c.server, name)
	}
	for name := range readers {
		c.done(cas.Swap{Key: "to/" + name, Data: []byte(name), Letters: []cas.Letter{{To: name, Key: "b/key", Body: []byte(name)}}})
	}
	for name, reader := range readers {
		if l := await.Receive(t, reader.letters, "a letter"); string(l.Body) != name || l.Key != "b/key" {
			t.Errorf("%q got %+v", name, l)
		}
		await.Silent(t, reader.letters, "letter")
		if r := c.load("to/" + name); string(r.Data) != name {
			t.Errorf("the record of %q: %+v", name, r)
		}
	}
}

// largestSwaps: swaps as large as the engine makes them are carried out, also several with one call.
func largestSwaps(t *testing.T, c *client) {
	most := c.Limits()
	if most.Living < cas.LeastLiving || most.Letters < 1 || most.Record < cas.LeastRecord || most.Mail < cas.LeastMail {
		t.Fatalf("the limits of a swap are too low: %+v", most)
	}
	var living []store.LeaseID
	for range most.Living {
		living = append(living, c.open(ttl, "one"))
	}
	large := func(key string) cas.Swap {
		s := cas.Swap{Key: key, Data: make([]byte, most.Record), Leases: living, Living: living}
		for i := range most.Letters {
			s.Letters = append(s.Letters, cas.Letter{To: fmt.Sprint("other", i), Key: key, Body: make([]byte, most.Mail/most.Letters)})
		}
		return s
	}
	for i, result := range c.swap(large("ns/a"), cas.Swap{Key: "ns/b", Data: []byte("b")}, large("ns/c")) {
		if !result.Done {
			t.Errorf("swap %d was not carried out", i)
		}
	}
	if r := c.load("ns/c"); len(r.Data) != most.Record || len(r.States) != most.Living {
		t.Errorf("%d bytes and %d leases", len(r.Data), len(r.States))
	}
}
