package storetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// Aging is a Backend whose leases and holds grow older at will.
type Aging interface {
	Backend
	// Age makes all that is to end later end so much earlier.
	Age(d time.Duration)
}

// RunModel does random things to instances of a store, one after the other, and to the
// model, and compares what can be seen after each. open is called for each run. The
// number of runs is -rapid.checks.
//
// A tick is the smallest time that leases and holds last, and by which they age. Between
// two ages nothing ends: a real clock must not go on by so much while one run is played.
func RunModel(t rapid.TB, tick time.Duration, open func() Aging) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t, tick, open())
		defer m.stop(t)
		t.Repeat(map[string]func(*rapid.T){
			"":          m.compare,
			"openLease": m.openLease,
			"renew":     m.renew,
			"revoke":    m.revoke,
			"reap":      m.reapInstance,
			"wait":      m.wait,
			"sweep":     m.sweep,
			"acquire":   func(t *rapid.T) { m.ask(t, false) },
			"enqueue":   func(t *rapid.T) { m.ask(t, true) },
			"enqueue2":  func(t *rapid.T) { m.ask(t, true) }, // so that lines grow
			"enqueue3":  func(t *rapid.T) { m.ask(t, true) },
			"enqueue4":  func(t *rapid.T) { m.ask(t, true) },
			"check":     m.check,
			"cancel":    m.cancel,
			"withdraw":  m.withdraw,
			"release":   m.release,
			"release2":  m.release,
			"amend":     m.amend,
			"signal":    m.signal,
			"heard":     m.hearSignals,
			"watch":     m.watch,
			"unwatch":   m.unwatch,
		})
	})
}

type machine struct {
	model   *model
	backend Aging
	tick    time.Duration
	stores  []engine
	leases  []store.LeaseID
	owner   map[store.LeaseID]int
	asks    []modelAsker
	ctx     context.Context
	ears    [2]modelEar
	ids     []store.Identity
}

var modelKeys = []string{"a", "b", "c"}

// key is most often the first, so that a line grows there.
func (m *machine) key(t *rapid.T) string {
	return modelKeys[max(0, rapid.IntRange(-3, len(modelKeys)-1).Draw(t, "key"))]
}

func newMachine(t *rapid.T, tick time.Duration, backend Aging) *machine {
	m := &machine{tick: tick, model: newModel(), backend: backend, owner: map[store.LeaseID]int{}, ctx: context.Background()}
	namespace := "model-" + uuid.NewString()
	for i := range m.ears {
		m.ids = append(m.ids, store.Identity{Namespace: namespace, Instance: fmt.Sprint(namespace, i)})
		s := engineOf(t, backend.Open(m.ids[i]))
		must(t, s.Start(m.ctx, m.ears[i].hear))
		m.until(t, "ready", func() bool { return s.Ready() == nil })
		s.Listen(true)
		m.stores = append(m.stores, s)
		m.openLease(t)
	}
	return m
}

// stop leaves nothing behind that would make the next run slower.
func (m *machine) stop(t *rapid.T) {
	for i, s := range m.stores {
		must(t, s.ReapInstance(m.ctx, m.ids[i].Instance))
		s.Stop()
	}
}

// until asks until the answer is yes. In virtual time it is at once, or never.
func (m *machine) until(t *rapid.T, what string, yes func() bool) {
	for deadline := time.Now().Add(patience); !yes(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for: %s", patience, what)
		}
	}
}

func (m *machine) wait(t *rapid.T) {
	d := m.duration(t, "pause") / 4
	m.backend.Age(d)
	m.model.clock = m.model.clock.Add(d)
}

func (m *machine) duration(t *rapid.T, what string) time.Duration {
	return time.Duration(rapid.IntRange(1, 8).Draw(t, what)) * 4 * m.tick
}

func (m *machine) any(t *rapid.T) engine {
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
	m.model.leases[id] = &modelLease{renewed: true, by: by, ttl: ttl, expires: m.model.clock.Add(ttl)}
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
	for _, id := range m.leases {
		if m.model.renew(id) {
			want = append(want, id)
		}
	}
	by := m.anyOf(t)
	got, err := m.stores[by].Renew(m.ctx, m.leases)
	must(t, err)
	for key, k := range m.model.locks {
		if id, watches := k.watchers[by]; watches && !slices.Contains(want, id) && !m.exact() {
			m.model.lapsed[modelWatch{by, key}] = true // it knows that its watch is over
		}
	}
	for _, ids := range [][]store.LeaseID{got.Kept, want} {
		slices.SortFunc(ids, func(a, b store.LeaseID) int { return bytes.Compare(a[:], b[:]) })
	}
	if !slices.Equal(got.Kept, want) {
		t.Fatalf("renewed %v, want %v", got, want)
	}
}

func (m *machine) revoke(t *rapid.T) {
	id := m.lease(t)
	if l := m.model.leases[id]; l.dead && !m.exact() {
		m.model.revisit(l)
	}
	m.model.revoke(m.model.leases[id])
	must(t, m.any(t).Revoke(m.ctx, []store.LeaseID{id}))
}

func (m *machine) reapInstance(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
		t.Skip("much would end at once")
	}
	by := m.anyOf(t)
	var theirs []*modelLease
	for _, id := range m.leases {
		if m.owner[id] == by {
			theirs = append(theirs, m.model.leases[id])
		}
	}
	m.model.revoke(theirs...)
	must(t, m.any(t).ReapInstance(m.ctx, m.ids[by].Instance))
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
		if k := m.model.lock(a.Key); a.TTL > 0 && k.holder.ID == a.ID && m.model.has(k, a.ID) {
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
	if want == store.Granted && answers[0].Outcome == want {
		m.learn(t, m.model.lock(a.Key), answers[0].Token)
	}
	m.listen(t)
	m.judge(t, a.Attempt, answers[0], want)
	if want == store.Queued && answers[0].Position == 0 {
		t.Fatalf("queued without a place: %+v", answers[0])
	}
}

func (m *machine) newAsk(t *rapid.T) modelAsker {
	key := m.key(t)
	a := store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: m.lease(t)}
	if rapid.IntRange(0, 3).Draw(t, "bind") == 0 {
		a.TTL = m.duration(t, "ttl")
	}
	if rapid.IntRange(0, 3).Draw(t, "hold") == 0 {
		a.MinHold = m.duration(t, "min")
	}
	a.Skip = rapid.IntRange(0, 2).Draw(t, "skip") == 0
	a.Data = fmt.Appendf(nil, "%q", a.ID)
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
	answers, err := m.stores[by].Check(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	m.listen(t)
	m.judge(t, a.Attempt, answers[0], want)
}

func (m *machine) cancel(t *rapid.T) {
	a, by := m.someAsk(t), m.anyOf(t)
	a.Undelivered = rapid.Bool().Draw(t, "undelivered")
	result := m.model.lock(a.Key).skips[a.ID].result
	want, place := m.model.cancel(by, a.Attempt)
	answers, err := m.stores[by].Cancel(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	if answers[0].Position != place {
		t.Fatalf("gave up place %d, want %d", answers[0].Position, place)
	}
	if want == store.Skipped && string(answers[0].Result) != result {
		t.Fatalf("result %q, want %q", answers[0].Result, result)
	}
	m.judge(t, a.Attempt, answers[0], want)
}

func (m *machine) withdraw(t *rapid.T) {
	a, by := m.someAsk(t), m.anyOf(t)
	m.model.withdraw(by, a.Attempt)
	outcomes, err := m.stores[by].Withdraw(m.ctx, []store.Attempt{a.Attempt})
	must(t, err)
	if !slices.Equal(outcomes, []store.Outcome{store.Gone}) {
		t.Fatalf("withdrawn: %v", outcomes)
	}
}

// claim is mostly a right one.
func (m *machine) claim(t *rapid.T) store.Claim {
	key := m.key(t)
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
	c.Undelivered, c.AtOnce = rapid.Bool().Draw(t, "undelivered"), rapid.IntRange(0, 3).Draw(t, "atonce") == 0
	c.Undelivered = c.Undelivered && m.model.lock(c.Key).holder.TTL > 0 // a session's lock is released by its own instance
	c.Outcome = store.ReleaseOutcome(rapid.IntRange(0, 2).Draw(t, "outcome"))
	c.Result = fmt.Append(nil, c.Token) // JSON
	k := m.model.lock(c.Key)
	want := m.model.release(by, c)
	verdicts, err := m.stores[by].Release(m.ctx, []store.Claim{c})
	must(t, err)
	m.judgeClaim(t, k, c, verdicts[0], want)
}

func (m *machine) amend(t *rapid.T) {
	c := store.Change{Claim: m.claim(t), SetData: true, Data: []byte(`"amended"`)}
	if rapid.Bool().Draw(t, "extend") {
		c.TTL = m.duration(t, "ttl")
	}
	k, by := m.model.lock(c.Key), m.anyOf(t)
	want := m.model.standing(by, c.Claim)
	if want == store.Holds {
		if c.TTL > 0 && !k.lease.renewed {
			before := k.lease.expires
			k.lease.expires = m.model.clock.Add(c.TTL)
			k.lease.expires = k.end()
			if k.lease.expires.Before(before) {
				m.model.hinted = m.model.firstAlive(k)
			}
		}
		k.holder.Data = c.Data
	}
	verdicts, err := m.stores[by].Amend(m.ctx, []store.Change{c})
	must(t, err)
	m.judgeClaim(t, k, c.Claim, verdicts[0], want)
}

func (m *machine) judgeClaim(t *rapid.T, k *modelLock, c store.Claim, v store.Verdict, want store.ClaimStatus) {
	forgotten := k.swept && v.Status == store.UnknownToken && (want == store.Released || want == store.Expired)
	if v.Status != want && !forgotten {
		t.Fatalf("claim %+v stands %d, want %d", c, v.Status, want)
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
		if got.Token != k.token || !m.lasts(got.ExpiresIn, k.end()) {
			t.Fatalf("%+v: granted %+v, want token %d until %v", a, got, k.token, k.end())
		}
	case store.Queued:
		unknown := got.Position == 0 && !m.exact() // only an Enqueue must tell it
		if got.Position != k.place(a.ID) && !unknown || got.Lock.Token != k.token {
			t.Fatalf("%+v: queued %+v, want place %d behind %d", a, got, k.place(a.ID), k.token)
		}
	case store.Skipped:
		if w := k.skips[a.ID]; w.ID == a.ID && w.result != string(got.Result) {
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
	m.model.granted[modelGrant{k.holder.ID, token}] = true
}

// compare looks at everything that can be seen.
func (m *machine) compare(t *rapid.T) {
	m.listen(t)
	locks, err := m.any(t).Get(m.ctx, modelKeys)
	must(t, err)
	for i, key := range modelKeys {
		k, got := m.model.lock(key), locks[i]
		held := m.model.isHeld(k)
		if got.Held != held || got.QueueLength != len(k.line) || held && got.Token != k.token {
			t.Fatalf("%+v\nwant held %v under %d, %d waiting", got, held, k.token, len(k.line))
		}
		if got.Expired != (!held && k.token != 0 && !k.released) && !k.swept || held && got.Holder.HoldPending == m.model.alive(k.lease) {
			t.Fatalf("%+v\nwant hold until %v, lease %+v, released %v", got, k.hold, k.lease, k.released)
		}
		if held && !bytes.Equal(got.Holder.Data, k.holder.Data) {
			t.Fatalf("data %q, want %q", got.Holder.Data, k.holder.Data)
		}
		if held {
			m.compareSignals(t, k, got)
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
