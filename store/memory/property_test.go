package memory_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// TestModel does random things to a store, one after the other in virtual time,
// and to the model, and compares what can be seen after each.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Hidden in a struct, because rapid asks a *testing.T for its deadline, which
		// there is none of in virtual time.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := newMachine(t)
			t.Repeat(map[string]func(*rapid.T){
				"":          m.compare,
				"openLease": m.openLease,
				"renew":     m.renew,
				"bury":      m.bury,
				"buryAll":   m.buryInstance,
				"wait":      func(t *rapid.T) { time.Sleep(m.duration(t, "pause")) }, // virtual
				"sweep":     m.sweep,
				"acquire":   func(t *rapid.T) { m.ask(t, false) },
				"enqueue":   func(t *rapid.T) { m.ask(t, true) },
				"enqueue2":  func(t *rapid.T) { m.ask(t, true) }, // twice as likely
				"check":     m.check,
				"cancel":    m.cancel,
				"undo":      m.undo,
				"release":   m.release,
				"amend":     m.amend,
			})
		})
	})
}

type machine struct {
	model  *model
	stores []*memory.Store
	leases []store.LeaseID
	owner  map[store.LeaseID]int
	asks   []modelAsker
	news   []store.News
	hints  []store.Attempt // news to look again
	skips  []store.News    // news of waiters that were skipped
	own    []store.LeaseID // of asks with a hold
	ctx    context.Context
	data   map[string]string // of the locks, by key
}

var modelKeys = []string{"a", "b", "c"}

func newMachine(t *rapid.T) *machine {
	m := &machine{model: newModel(), owner: map[store.LeaseID]int{}, ctx: context.Background(), data: map[string]string{}}
	space := memory.NewSpace()
	for i := range 2 {
		s := space.Open(store.Identity{Namespace: "n", Instance: fmt.Sprint(i)})
		s.OnNews(func(n store.News) {
			if m.owner[n.Lease] != i {
				t.Fatalf("instance %d heard of %+v", i, n)
			}
			if n.Answer.Outcome == 0 {
				m.hints = append(m.hints, n.Attempt)
				return
			}
			if n.Answer.Outcome == store.Skipped {
				m.skips = append(m.skips, n)
				return
			}
			m.news = append(m.news, n)
		})
		if err := s.Start(m.ctx); err != nil {
			t.Fatal(err)
		}
		m.stores = append(m.stores, s)
		m.openLease(t)
	}
	return m
}

func (m *machine) duration(t *rapid.T, what string) time.Duration {
	return time.Duration(rapid.IntRange(1, 30).Draw(t, what)) * 100 * time.Millisecond
}

func (m *machine) any(t *rapid.T) *memory.Store {
	return m.stores[m.anyOf(t)]
}

func (m *machine) anyOf(t *rapid.T) int {
	return rapid.IntRange(0, len(m.stores)-1).Draw(t, "instance")
}

func (m *machine) openLease(t *rapid.T) {
	if len(m.leases) > 12 {
		t.Skip("enough leases")
	}
	m.leases = append(m.leases, m.open(t, len(m.leases)%2))
}

func (m *machine) open(t *rapid.T, by int) store.LeaseID {
	id, ttl := uuid.New(), m.duration(t, "ttl")
	m.owner[id] = by
	m.model.leases[id] = &modelLease{renewed: true, ttl: ttl, expires: time.Now().Add(ttl)}
	must(t, m.stores[by].OpenLeases(m.ctx, []store.NewLease{{ID: id, TTL: ttl}}))
	return id
}

func (m *machine) lease(t *rapid.T) store.LeaseID {
	// The youngest are more likely alive.
	back := rapid.IntRange(1, min(len(m.leases), 4)).Draw(t, "lease")
	return m.leases[len(m.leases)-back]
}

func (m *machine) renew(t *rapid.T) {
	var want []store.LeaseID
	all := slices.Concat(m.leases, m.own)
	for _, id := range all {
		if m.model.renew(id) {
			want = append(want, id)
		}
	}
	got, err := m.any(t).Renew(m.ctx, all)
	must(t, err)
	if !slices.Equal(got.Kept, want) {
		t.Fatalf("renewed %v, want %v", got, want)
	}
}

func (m *machine) bury(t *rapid.T) {
	id := m.lease(t)
	if len(m.own) > 0 && rapid.Bool().Draw(t, "own") {
		id = m.own[len(m.own)-rapid.IntRange(1, min(len(m.own), 4)).Draw(t, "lease")]
	}
	m.model.bury(m.model.leases[id])
	must(t, m.any(t).Bury(m.ctx, []store.LeaseID{id}))
}

func (m *machine) buryInstance(t *rapid.T) {
	by := m.anyOf(t)
	var theirs []*modelLease
	for _, id := range slices.Concat(m.leases, m.own) {
		if m.owner[id] == by {
			theirs = append(theirs, m.model.leases[id])
		}
	}
	m.model.bury(theirs...)
	must(t, m.any(t).BuryInstance(m.ctx, fmt.Sprint(by)))
}

func (m *machine) sweep(t *rapid.T) {
	m.model.sweep()
	must(t, m.any(t).Sweep(m.ctx))
}

// ask makes a new attempt, or repeats one.
func (m *machine) ask(t *rapid.T, wait bool) {
	a := m.newAsk(t)
	if len(m.asks) > 0 && rapid.IntRange(0, 3).Draw(t, "repeat") == 0 {
		a = m.someAsk(t)
		if k := m.model.lock(a.Key); a.TTL > 0 && k.holder.Grant == a.Grant && m.model.has(k, a.Grant) {
			a.by = m.anyOf(t)
		}
	} else {
		m.asks = append(m.asks, a)
	}
	do := m.stores[a.by].Acquire
	if wait {
		do = m.stores[a.by].Enqueue
	}
	want := m.model.ask(a, wait)
	answers, err := do(m.ctx, []store.Ask{a.Ask})
	must(t, err)
	if want == store.Granted {
		m.learn(t, m.model.lock(a.Key), answers[0].Token)
	}
	m.heard(t)
	m.judge(t, a.Attempt, answers[0], want)
}

func (m *machine) newAsk(t *rapid.T) modelAsker {
	key := rapid.SampledFrom(modelKeys).Draw(t, "key")
	a := store.Ask{Attempt: store.Attempt{Key: key, Grant: uuid.New()}, Lease: m.lease(t)}
	if rapid.IntRange(0, 3).Draw(t, "bind") == 0 {
		a.TTL = m.duration(t, "ttl")
	}
	if rapid.IntRange(0, 3).Draw(t, "hold") == 0 {
		a.MinHold = m.duration(t, "min")
		if a.TTL == 0 {
			a.Lease = m.open(t, m.owner[a.Lease])
			m.own = append(m.own, a.Lease)
		}
	}
	a.Skip = rapid.IntRange(0, 2).Draw(t, "skip") == 0
	a.Data = []byte(a.Grant.String())
	return modelAsker{a, m.owner[a.Lease]}
}

// someAsk is an earlier ask, more likely a late one.
func (m *machine) someAsk(t *rapid.T) modelAsker {
	if len(m.asks) == 0 {
		t.Skip("nothing asked yet")
	}
	back := rapid.IntRange(1, min(len(m.asks), 8)).Draw(t, "ask")
	return m.asks[len(m.asks)-back]
}

func (m *machine) check(t *rapid.T) {
	a, by := m.someAsk(t), m.anyOf(t)
	want := m.model.check(by, a.Attempt)
	answers, err := m.stores[by].CheckWaits(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	m.heard(t)
	m.judge(t, a.Attempt, answers[0], want)
}

func (m *machine) cancel(t *rapid.T) {
	a, by := m.someAsk(t), m.anyOf(t)
	result := m.model.lock(a.Key).skips[a.Grant].result
	want, place := m.model.cancel(by, a.Attempt)
	answers, err := m.stores[by].CancelWaits(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	if answers[0].Position != place {
		t.Fatalf("gave up place %d, want %d", answers[0].Position, place)
	}
	if want == store.Skipped && string(answers[0].Result) != result {
		t.Fatalf("result %q, want %q", answers[0].Result, result)
	}
	m.judge(t, a.Attempt, answers[0], want)
}

func (m *machine) undo(t *rapid.T) {
	a, by := m.someAsk(t), m.anyOf(t)
	m.model.undo(by, a.Attempt)
	outcomes, err := m.stores[by].Undo(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	if !slices.Equal(outcomes, []store.Outcome{store.Gone}) {
		t.Fatalf("undone: %v", outcomes)
	}
}

// claim is mostly a right one.
func (m *machine) claim(t *rapid.T) store.Claim {
	key := rapid.SampledFrom(modelKeys).Draw(t, "key")
	k := m.model.lock(key)
	c := store.Claim{Key: key, Token: k.token, Lease: k.holder.Lease}
	switch rapid.IntRange(0, 9).Draw(t, "claim") {
	case 0:
		c.Token--
	case 1:
		c.Lease = m.lease(t)
	case 2:
		c.Lease = store.LeaseID{}
	}
	return c
}

func (m *machine) release(t *rapid.T) {
	c, by := m.claim(t), m.anyOf(t)
	c.Untold, c.AtOnce = rapid.Bool().Draw(t, "untold"), rapid.IntRange(0, 3).Draw(t, "atonce") == 0
	c.Outcome = store.ReleaseOutcome(rapid.IntRange(0, 2).Draw(t, "outcome"))
	c.Result = fmt.Append(nil, c.Token)
	k := m.model.lock(c.Key)
	want := m.model.standing(by, c)
	switch {
	case want == store.Holds:
		if c.Outcome == store.Success {
			m.model.skip(k, string(c.Result))
		}
		m.model.giveUp(k, c.AtOnce)
	case c.Outcome == store.Success && (want == store.Released || c.Token < k.token):
		m.model.tellSkipped(k)
	}
	verdicts, err := m.stores[by].Release(m.ctx, []store.Claim{c})
	must(t, err)
	m.judgeClaim(t, k, c, verdicts[0], want)
}

func (m *machine) amend(t *rapid.T) {
	c := store.Change{Claim: m.claim(t), SetData: true, Data: []byte("amended")}
	if rapid.Bool().Draw(t, "extend") {
		c.TTL = m.duration(t, "ttl")
	}
	k := m.model.lock(c.Key)
	want := m.model.standing(0, c.Claim)
	if want == store.Holds {
		if c.TTL > 0 && !k.lease.renewed {
			before := k.lease.expires
			k.lease.extend(time.Now().Add(c.TTL))
			if k.lease.expires.Before(before) {
				m.model.hinted = m.model.firstAlive(k)
			}
		}
		k.holder.Data = c.Data
	}
	verdicts, err := m.any(t).Amend(m.ctx, []store.Change{c})
	must(t, err)
	m.judgeClaim(t, k, c.Claim, verdicts[0], want)
}

// hinted compares the other news with what must have been told, in any order.
func (m *machine) hinted(t *rapid.T) {
	var skips []store.Attempt
	for _, n := range m.skips {
		skips = append(skips, n.Attempt)
		if want := m.model.results[n.Grant]; want != string(n.Answer.Result) {
			t.Fatalf("heard of a skip: %+v, want the result %q", n, want)
		}
	}
	for what, pair := range map[string][2][]store.Attempt{
		"hints": {m.hints, m.model.hinted}, "skips": {skips, m.model.skipped},
	} {
		for _, side := range pair {
			slices.SortFunc(side, func(a, b store.Attempt) int { return bytes.Compare(a.Grant[:], b.Grant[:]) })
		}
		if !slices.Equal(pair[0], pair[1]) {
			t.Fatalf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	m.hints, m.skips, m.model.hinted, m.model.skipped = nil, nil, nil, nil
}

func (m *machine) judgeClaim(t *rapid.T, k *modelLock, c store.Claim, v store.Verdict, want store.Standing) {
	forgotten := k.swept && v.Standing == store.UnknownToken && (want == store.Released || want == store.Expired)
	if v.Standing != want && !forgotten {
		t.Fatalf("claim %+v stands %d, want %d", c, v.Standing, want)
	}
	if want == store.Holds && v.Lock.Token != c.Token {
		t.Fatalf("claim %+v is answered with %+v", c, v.Lock)
	}
}

func (m *machine) judge(t *rapid.T, a store.Attempt, got store.Answer, want store.Outcome) {
	if got.Outcome != want {
		t.Fatalf("%+v: outcome %d, want %d", a, got.Outcome, want)
	}
	k := m.model.lock(a.Key)
	switch want {
	case store.Granted:
		if got.Token != k.token || got.ExpiresIn != time.Until(k.lease.expires) {
			t.Fatalf("%+v: granted %+v, want token %d until %v", a, got, k.token, k.lease.expires)
		}
	case store.Queued:
		if got.Position != k.place(a.Grant) || got.Lock.Token != k.token {
			t.Fatalf("%+v: queued %+v, want place %d behind %d", a, got, k.place(a.Grant), k.token)
		}
	case store.Skipped:
		if w := k.skips[a.Grant]; w.Grant == a.Grant && w.result != string(got.Result) {
			t.Fatalf("%+v: skipped %+v, want the result %q", a, got, w.result)
		}
	case store.Held:
		if got.Lock.Token != k.token {
			t.Fatalf("%+v: held under %d, want %d", a, got.Lock.Token, k.token)
		}
	}
}

// learn notes the token of a new grant.
func (m *machine) learn(t *rapid.T, k *modelLock, token int64) {
	if k.token == token {
		return
	}
	if k.token != 0 || token <= k.last {
		t.Fatalf("token %d of a grant that had %d, after %d", token, k.token, k.last)
	}
	k.token, k.last = token, token
}

// heard compares the news with what must have been handed off.
func (m *machine) heard(t *rapid.T) {
	if len(m.news) != len(m.model.handedOff) {
		t.Fatalf("heard %+v\nwant %+v", m.news, m.model.handedOff)
	}
	for _, w := range m.model.handedOff {
		i := slices.IndexFunc(m.news, func(n store.News) bool { return n.Attempt == w.Attempt && n.Lease == w.Lease })
		if i < 0 {
			t.Fatalf("no news of %+v", w)
		}
		m.learn(t, m.model.lock(w.Key), m.news[i].Answer.Token)
		m.judge(t, w.Attempt, m.news[i].Answer, store.Granted)
	}
	m.news, m.model.handedOff = nil, nil
}

// compare looks at everything that can be seen.
func (m *machine) compare(t *rapid.T) {
	m.heard(t)
	m.hinted(t)
	locks, err := m.any(t).Get(m.ctx, modelKeys)
	must(t, err)
	for i, key := range modelKeys {
		k, got := m.model.lock(key), locks[i]
		held := m.model.alive(k.lease)
		if got.Held != held || got.QueueLength != len(k.line) || held && got.Token != k.token {
			t.Fatalf("%+v\nwant held %v under %d, %d waiting", got, held, k.token, len(k.line))
		}
		if got.Expired != (!held && k.token != 0 && !k.released) && !k.swept || held && got.Holder.Standing != k.lease.stands {
			t.Fatalf("%+v\nwant standing as %+v, released %v", got, k.lease, k.released)
		}
		if held && !bytes.Equal(got.Holder.Data, k.holder.Data) {
			t.Fatalf("data %q, want %q", got.Holder.Data, k.holder.Data)
		}
	}
	limit := rapid.IntRange(1, 3).Draw(t, "limit")
	listed, err := m.any(t).List(m.ctx, store.Query{Limit: limit})
	must(t, err)
	held := m.model.held()
	held = held[:min(limit, len(held))]
	if !slices.EqualFunc(listed, held, func(l store.Lock, key string) bool { return l.Key == key }) {
		t.Fatalf("listed %+v, want %v", listed, held)
	}
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
