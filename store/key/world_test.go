package key

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// world is one key, two instances with leases, and what both were told. It is the engine of the machine. Time is a number.
type world struct {
	row             *Row
	now             int64
	tokens, signals int64
	ids             uint64
	instances       [2]*Instance
	leases          []store.LeaseID // those that instances renew
	byID            map[store.LeaseID]*Lease
	asks            []asked
	grants          []*told
	// died are leases whose death the row was not told yet.
	died []*Lease
	// records: each operation works on a row that was encoded and decoded.
	records bool
}

// asked is an ask, and the instance that made it.
type asked struct {
	store.Ask
	by int
	// atOnce: it was an Acquire, not an Enqueue.
	atOnce bool
}

// told is a grant as its instance knows it.
type told struct {
	asked
	first, token int64
	lease        store.LeaseID
	cohort       []store.HalfID
	kept         int64 // when its MinHold ends
	over         bool
	// keepable: its instance may keep the key. recalled: it was told that another one wants it.
	keepable, recalled bool
}

func newWorld(t *rapid.T) *world {
	w := &world{row: &Row{Key: "k"}, now: 1, byID: map[store.LeaseID]*Lease{}, records: rapid.Bool().Draw(t, "records")}
	for i, name := range []string{"a", "b"} {
		w.instances[i] = &Instance{Name: name, Pod: "pod-" + name}
		w.openLease(t)
	}
	return w
}

func (w *world) id() (id [16]byte) {
	w.ids++
	binary.BigEndian.PutUint64(id[:], w.ids)
	return id
}

func (w *world) Reserve(upTo int64) bool {
	w.tokens = max(w.tokens, upTo)
	return true
}

func (w *world) moment() Moment {
	return Moment{Wall: time.UnixMicro(1e15).Add(time.Duration(w.now)), At: w.now}
}

func (w *world) Token() int64               { w.tokens++; return w.tokens }
func (w *world) NextSignal() store.SignalID { w.signals++; return store.SignalID(w.signals) }
func (w *world) Close(*Lease)               {}
func (w *world) Hold(k string, ttl time.Duration, now Moment) *Lease {
	return w.Open(k, ttl, now)
}

func (w *world) Open(k string, ttl time.Duration, now Moment) *Lease {
	l := NewLease(w.id(), nil, k, ttl).LiveFor(ttl, now)
	w.byID[l.id] = l
	return l
}

func (w *world) Extend(l *Lease, ttl time.Duration, now Moment) *Lease {
	if extended, _ := l.Extend(now, ttl); !extended {
		return nil
	}
	return l
}

func (w *world) openLease(t *rapid.T) {
	l := NewLease(w.id(), w.instances[len(w.leases)%2], "", ticks(t, "ttl"))
	w.byID[l.id] = l.LiveFor(l.ttl, w.moment())
	w.leases = append(w.leases, l.id)
}

func ticks(t *rapid.T, what string) time.Duration {
	return time.Duration(rapid.IntRange(1, 9).Draw(t, what))
}

// of draws one of the last few leases of an instance.
func (w *world) of(t *rapid.T, by int) *Lease {
	var own []*Lease
	for _, id := range w.leases {
		if l := w.byID[id]; l.by.is(w.instances[by]) {
			own = append(own, l)
		}
	}
	return own[len(own)-rapid.IntRange(1, min(2, len(own))).Draw(t, "lease")]
}

// reload encodes and decodes the row. Its leases become new objects with the same state.
func (w *world) reload(t *rapid.T) {
	text := w.text()
	var rec Record
	if err := json.Unmarshal([]byte(text), &rec); err != nil { //nolint:musttag // the names do not matter here
		t.Fatal(err)
	}
	var leases []*Lease
	for _, l := range rec.Leases {
		var by *Instance
		if l.By > 0 {
			by = w.instances[w.index(&rec.Instances[l.By-1])]
		}
		is := NewLease(l.ID, by, w.row.Key, l.TTL)
		is.expires.Store(w.byID[l.ID].expires.Load())
		w.died = replace(w.died, w.byID[l.ID], is)
		w.byID[l.ID] = is
		leases = append(leases, is)
	}
	w.row = rec.Row(w.row.Key, leases)
	if again := w.text(); again != text {
		t.Fatalf("decoded:\n%s\nwas:\n%s", again, text)
	}
}

func replace(leases []*Lease, old, by *Lease) []*Lease {
	for i := range leases {
		if leases[i] == old {
			leases[i] = by
		}
	}
	return leases
}

func (w *world) text() string {
	text, err := json.Marshal(w.row.Record()) //nolint:musttag // the names do not matter here
	if err != nil {
		panic(err)
	}
	return string(text)
}

// change is what one operation may do: which grants and holds it may end, and which waiters may leave.
type change struct {
	by         int
	ends, free func(*told) bool
	leave      func(store.AttemptID) bool
	// answered: the answer told of this grant.
	answered func() *told
}

// do carries an operation out, and checks what it did.
func (w *world) do(t *rapid.T, c change, operate func(o *Op)) {
	if w.records {
		w.reload(t)
	}
	o := &Op{Engine: w, By: w.instances[c.by], Now: w.moment()}
	before := slices.Clone(w.row.queue.line)
	last, visible := w.tokens, w.row.Token
	operate(o)
	w.died = append(w.died, o.Died...)
	granted := w.hear(t, o, c)
	w.tokensGrow(t, granted, last)
	w.keepsRightly(t, granted, visible)
	w.nobodyIsOvertaken(t, before, granted)
	w.nobodyIsLost(t, before, granted, c, o)
	w.grantsStay(t, c)
	w.watchersHear(t, o, granted)
	w.check(t)
}

// hear adds the grants that the operation told of, and returns the new ones.
func (w *world) hear(t *rapid.T, o *Op, c change) (granted []*told) {
	hear := func(g *told) {
		if !slices.ContainsFunc(w.grants, func(known *told) bool { return known.Attempt.ID == g.Attempt.ID && known.token == g.token }) {
			w.grants, granted = append(w.grants, g), append(granted, g)
		}
	}
	for _, n := range o.News {
		if n.Recall {
			w.recalled(t, n)
		}
		if n.Answer.Outcome != store.Granted {
			continue
		}
		g := w.told(t, n.ID, w.index(n.To), &n.Answer)
		w.cohortIsNext(t, g)
		hear(g)
	}
	if c.answered != nil {
		if g := c.answered(); g != nil {
			hear(g)
		}
	}
	for h := range w.row.holders() {
		if h.Token > 0 && !slices.ContainsFunc(w.grants, func(g *told) bool { return store.OfGrant(g.first, h.Token) }) {
			t.Fatalf("nobody is told of grant %d", h.Token)
		}
	}
	return granted
}

// told is what an answer says about a grant.
func (w *world) told(t *rapid.T, id store.AttemptID, by int, a *store.Answer) *told {
	for _, ask := range slices.Backward(w.asks) {
		if ask.ID != id || ask.by != by {
			continue
		}
		g := &told{asked: ask, first: a.Token, token: a.Token, lease: ask.Lease, cohort: a.Cohort, keepable: a.Keepable}
		if h := w.row.heldBy(id, w.moment()); h != nil {
			g.lease = h.lease.id
		}
		if ask.MinHold > 0 {
			g.kept = w.now + int64(ask.MinHold)
		}
		return g
	}
	t.Fatalf("instance %d did not ask with %v", by, id)
	return nil
}

func (w *world) index(i *Instance) int { return slices.IndexFunc(w.instances[:], i.is) }

// visit tells the row of all deaths.
func (w *world) visit(t *rapid.T) {
	for len(w.died) > 0 {
		w.do(t, change{}, func(o *Op) {
			died := w.died
			w.died = nil
			o.Visit(w.row, died)
			w.deadAreGone(t, died)
		})
	}
}
