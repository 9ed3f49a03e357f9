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

// Aging is a Backend whose leases and holds can be made older.
type Aging interface {
	Backend
	// Age moves all future ends closer by d.
	Age(d time.Duration)
}

// RunModel does random operations on instances of a store, one after the other, and on the model.
// It compares all visible state after each. open is called for each run, and -rapid.checks is the
// number of runs.
//
// tick is the shortest duration of leases and holds, and the step by which they age. A run must
// take less than one tick of a real clock, because only ageing may end something.
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
			"enqueue2":  func(t *rapid.T) { m.ask(t, true) }, // so that queues grow
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
	// asked is the attempt of the present operation, if it asks.
	asked store.AttemptID
	ctx   context.Context
	ears  [2]modelEar
	ids   []store.Identity
}

var modelKeys = []string{"a", "b", "c"}

// key returns mostly the first key, so that its queue grows.
func (m *machine) key(t *rapid.T) string {
	return modelKeys[max(0, rapid.IntRange(-3, len(modelKeys)-1).Draw(t, "key"))]
}

func newMachine(t *rapid.T, tick time.Duration, backend Aging) *machine {
	m := &machine{tick: tick, model: newModel(), backend: backend, owner: map[store.LeaseID]int{}, ctx: context.Background()}
	namespace := "model-" + uuid.NewString()
	for i := range m.ears {
		m.ids = append(m.ids, store.Identity{Namespace: namespace, Instance: fmt.Sprint(namespace, i)})
		s := engineOf(backend.Open(m.ids[i]))
		must(t, s.Start(m.ctx, m.ears[i].hear))
		m.until(t, "ready", func() bool { return s.Ready() == nil })
		s.Listen(true)
		m.stores = append(m.stores, s)
		m.openLease(t)
	}
	m.model.exact = m.exact()
	return m
}

// stop ends what would make the next run slower.
func (m *machine) stop(t *rapid.T) {
	for i, s := range m.stores {
		must(t, s.ReapInstance(m.ctx, m.ids[i].Instance))
		s.Stop()
	}
}

// until calls yes until it returns true. In virtual time, the first call decides.
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
	if m.stores[0].Traits().Final {
		m.model.expire()
		_, err := m.any(t).Get(m.ctx, modelKeys) // somebody looks at the keys
		must(t, err)
	}
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
	// The youngest leases are more likely to be alive.
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
	if m.stores[by].Traits().Final { // such an engine may answer with the end that the owner of a lease knows
		_, err = m.stores[1-by].Renew(m.ctx, m.leases)
		must(t, err)
	}
	for key, k := range m.model.locks {
		if id, watches := k.watchers[by]; watches && !slices.Contains(want, id) && !m.exact() {
			m.model.lapsed[modelWatch{by, key}] = true // the owner knows that its watch is over
		}
	}
	for _, ids := range [][]store.LeaseID{got.Renewed, want} {
		slices.SortFunc(ids, func(a, b store.LeaseID) int { return bytes.Compare(a[:], b[:]) })
	}
	if !slices.Equal(got.Renewed, want) {
		t.Fatalf("renewed %v, want %v", got, want)
	}
}

func (m *machine) revoke(t *rapid.T) {
	id := m.lease(t)
	m.model.revoke(m.model.leases[id])
	must(t, m.any(t).Revoke(m.ctx, []store.LeaseID{id}))
}

func (m *machine) reapInstance(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
		t.Skip("skipped mostly, because it ends many leases at once")
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

// ask makes a new attempt or repeats one.
func (m *machine) ask(t *rapid.T, wait bool) {
	a := m.newAsk(t)
	if len(m.asks) > 0 && rapid.IntRange(0, 3).Draw(t, "repeat") == 0 {
		a = m.someAsk(t)
		if a.TTL > 0 && m.model.has(m.model.lock(a.Key), a.ID) != nil {
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
		m.learn(t, m.model.lock(a.Key), a.ID, answers[0])
	}
	m.judgeKeepable(t, m.model.lock(a.Key), answers[0])
	m.asked = a.ID
	m.listen(t)
	m.judge(t, a.Attempt, answers[0], want)
	if want == store.Queued && answers[0].Position == 0 {
		t.Fatalf("queued without a position: %+v", answers[0])
	}
}

func (m *machine) newAsk(t *rapid.T) modelAsker {
	key := m.key(t)
	a := store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: m.lease(t)}
	a.Data = fmt.Appendf(nil, "%q", a.ID)
	if rapid.Bool().Draw(t, "again") {
		a.Last = m.model.lock(key).token
		if rapid.IntRange(0, 7).Draw(t, "stale") == 0 {
			a.Last--
		}
		if rapid.Bool().Draw(t, "plain") {
			return modelAsker{a, m.owner[a.Lease]}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "bind") == 0 {
		a.TTL = m.duration(t, "ttl")
	}
	if rapid.IntRange(0, 3).Draw(t, "hold") == 0 {
		a.MinHold = m.duration(t, "min")
	}
	a.Shared = rapid.Bool().Draw(t, "shared")
	a.Skip = !a.Shared && rapid.IntRange(0, 2).Draw(t, "skip") == 0
	if a.Shared {
		a.Limit = slices.Index(modelKeys, key) // mostly one limit for each key
		if rapid.IntRange(0, 7).Draw(t, "mismatch") == 0 {
			a.Limit++
		}
	}
	return modelAsker{a, m.owner[a.Lease]}
}

// someAsk returns an earlier ask, more likely a recent one.
func (m *machine) someAsk(t *rapid.T) modelAsker {
	if len(m.asks) == 0 {
		t.Skip("no ask yet")
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
		t.Fatalf("cancelled at position %d, want %d", answers[0].Position, place)
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

func (k *modelLock) someHold(t *rapid.T) *modelHold {
	holds := k.holds()
	return holds[rapid.IntRange(0, len(holds)-1).Draw(t, "of")]
}

// claim is mostly a valid one.
func (m *machine) claim(t *rapid.T) store.Claim {
	key := m.key(t)
	k := m.model.lock(key)
	h := k.someHold(t)
	c := store.Claim{Key: key, Token: h.token, Lease: h.holder.Lease}
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
	k := m.model.lock(c.Key)
	of := k.granted(c.Token)
	c.Undelivered = c.Undelivered && of != nil && of.holder.TTL > 0 // only its own instance releases a session's lock
	if len(k.shares) == 0 || c.Lease == (store.LeaseID{}) {
		c.Outcome = store.ReleaseOutcome(rapid.IntRange(0, 2).Draw(t, "outcome"))
		c.Result = fmt.Append(nil, c.Token) // JSON
	}
	want := m.model.release(by, c)
	verdicts, err := m.stores[by].Release(m.ctx, []store.Claim{c})
	must(t, err)
	m.judgeClaim(t, k, c, verdicts[0].Status, want)
}

func (m *machine) amend(t *rapid.T) {
	claim := m.claim(t)
	c := store.Change{Key: claim.Key, Token: claim.Token, Lease: claim.Lease, SetData: true, Data: []byte(`"amended"`)}
	if rapid.Bool().Draw(t, "extend") {
		c.TTL = m.duration(t, "ttl")
	}
	downgrade := rapid.IntRange(0, 3).Draw(t, "downgrade") == 0
	k, by := m.model.lock(c.Key), m.anyOf(t)
	want := m.model.standing(by, claim)
	if want == store.Holds {
		h := k.granted(c.Token)
		if c.TTL > 0 && !h.lease.renewed {
			before := h.lease.expires
			h.lease.expires = m.model.clock.Add(c.TTL)
			h.lease.expires = h.end()
			if h.lease.expires.Before(before) {
				m.model.hinted = m.model.firstAlive(k)
			}
		}
		h.holder.Data = c.Data
		m.model.unkeep(k, h)
		if downgrade {
			m.model.downgrade(k)
		}
	}
	amend := m.stores[by].Amend
	if downgrade {
		amend = m.stores[by].Downgrade
	}
	amended, err := amend(m.ctx, []store.Change{c})
	must(t, err)
	m.judgeClaim(t, k, claim, amended[0].Status, want)
	if want == store.Holds && amended[0].Lock.Token != claim.Token {
		t.Fatalf("claim %+v is answered with %+v", claim, amended[0].Lock)
	}
}

func (m *machine) judgeClaim(t *rapid.T, k *modelLock, c store.Claim, got, want store.ClaimStatus) {
	forgotten := k.swept && got == store.UnknownToken && (want == store.Released || want == store.Expired)
	if end := k.ends[c.Token]; end != 0 && (want == end || got == end) { // the end of a share
		forgotten = forgotten || got == store.UnknownToken || want == store.UnknownToken
	}
	if got != want && !forgotten {
		t.Fatalf("claim %+v: status %d, want %d", c, got, want)
	}
}

func (m *machine) judge(t *rapid.T, a store.Attempt, got store.Answer, want store.Outcome) {
	if got.Outcome != want {
		t.Fatalf("got %+v: outcome %d, want %d", a, got.Outcome, want)
	}
	k := m.model.lock(a.Key)
	switch want {
	case store.Granted:
		h := k.grantOf(a.ID)
		if h == nil || got.Token != h.token || got.Slot != h.slot || !m.lasts(got.ExpiresIn, h.end()) {
			t.Fatalf("got %+v: granted %+v, want %+v", a, got, h)
		}
	case store.Queued:
		unknown := got.Position == 0 && !m.exact() // only Enqueue must return it
		if got.Position != m.model.seen.place && !unknown && (m.exact() || got.Position != k.place(a.ID)) || got.Lock.Token != k.first().token || !slices.Contains(m.model.seen.limits, got.Lock.Limit) || got.Lock.Kept != m.model.isKept(k) {
			t.Fatalf("got %+v: queued %+v, want %+v behind %d", a, got, m.model.seen, k.first().token)
		}
	case store.Skipped:
		if w := k.skips[a.ID]; w.ID == a.ID && w.result != string(got.Result) {
			t.Fatalf("got %+v: skipped %+v, want the result %q", a, got, w.result)
		}
	case store.Held, store.LimitMismatch:
		if got.Lock.Token != k.first().token || got.Lock.HoldersCount != len(k.shares) || !slices.Contains(m.model.seen.limits, got.Lock.Limit) || got.Lock.Kept != m.model.isKept(k) {
			t.Fatalf("got %+v: held under %+v, want %d and %+v", a, got.Lock, k.first().token, m.model.seen)
		}
	}
}

// learn stores the token and the slot of a new grant. The slot differs if the store ended other
// grants in another order.
func (m *machine) learn(t *rapid.T, k *modelLock, id store.AttemptID, got store.Answer) {
	h := k.grantOf(id)
	if h == nil || h.token == got.Token {
		return
	}
	if h.token != 0 || got.Token <= h.after {
		t.Fatalf("token %d of a grant that had %d, after %d", got.Token, h.token, h.after)
	}
	h.token, k.last = got.Token, max(k.last, got.Token)
	if !m.exact() {
		h.slot = got.Slot
	}
	m.model.granted[modelGrant{h.holder.ID, got.Token}] = true
}

// compare compares all visible state.
func (m *machine) compare(t *rapid.T) {
	m.listen(t)
	locks, err := m.any(t).Get(m.ctx, modelKeys)
	must(t, err)
	for i, key := range modelKeys {
		m.compareLock(t, m.model.lock(key), locks[i])
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

func (m *machine) compareLock(t *rapid.T, k *modelLock, got store.Lock) {
	held, last := m.model.isHeld(k), k.token
	var shares []*modelHold
	for _, h := range k.shares {
		if m.model.keeps(h) {
			shares = append(shares, h)
		}
	}
	if len(shares) > 0 {
		last = shares[0].token
	}
	if got.Held != held || got.QueueLength != len(k.line) || held && got.Token != last {
		t.Fatalf("%+v\nwant held %v under %d, %d waiting", got, held, last, len(k.line))
	}
	if got.Expired != (!held && k.token != 0 && !k.released) && !k.swept {
		t.Fatalf("%+v\nwant hold until %v, lease %+v, released %v", got, k.hold, k.lease, k.released)
	}
	if got.Kept != m.model.isKept(k) {
		t.Fatalf("%+v\nwant kept %v", got, m.model.isKept(k))
	}
	if got.Shared != (len(shares) > 0) || got.HoldersCount != len(shares) || held && !slices.Contains(m.model.limits(k), got.Limit) {
		t.Fatalf("%+v\nwant %d shares and a limit of %v", got, len(shares), m.model.limits(k))
	}
	if held && len(shares) == 0 {
		m.compareHolder(t, k, k.modelHold, store.Share{Token: got.Token, Stopping: got.Stopping, Holder: got.Holder})
	}
	for i, h := range shares {
		m.compareHolder(t, k, h, got.Holders[i])
		if i > 0 && h.token <= shares[i-1].token {
			t.Fatalf("token %d after %d", h.token, shares[i-1].token)
		}
	}
}

func (m *machine) compareHolder(t *rapid.T, k *modelLock, h *modelHold, got store.Share) {
	if got.Token != h.token || got.Slot != h.slot || got.HoldPending == m.model.alive(h.lease) || !m.lasts(got.ExpiresIn, h.end()) {
		t.Fatalf("%+v\nwant %+v until %v", got, h, h.end())
	}
	if !bytes.Equal(got.Data, h.holder.Data) {
		t.Fatalf("data %q, want %q", got.Data, h.holder.Data)
	}
	m.compareSignals(t, k, h, got.Stopping)
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
