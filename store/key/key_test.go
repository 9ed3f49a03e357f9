package key

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// Random operations on one row keep the promises of the package store. The invariants know what instances were told, and nothing
// of how the machine decides.
// Proves: promise 1, promise 3, promise 5
func TestPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":          w.check,
			"openLease": w.openLease,
			"pass":      func(t *rapid.T) { w.now += int64(ticks(t, "time")) },
			"renew":     func(t *rapid.T) { l := w.of(t, one(t)); l.Extend(w.moment(), l.ttl) },
			"end":       w.end,
			"visit":     w.visit,
			"ask":       w.ask,
			"wait":      w.ask,
			"wait2":     w.ask,
			"check":     w.look,
			"cancel":    w.cancel,
			"withdraw":  w.withdraw,
			"release":   w.release,
			"release2":  w.release,
			"amend":     w.amend,
			"move":      w.move,
			"signal":    w.signal,
			"watch":     w.watch,
			"get":       func(t *rapid.T) { w.do(t, change{}, func(o *Op) { o.Get(w.row) }) },
		})
	})
}

func one(t *rapid.T) int { return rapid.IntRange(0, 1).Draw(t, "instance") }

func seldom(t *rapid.T, what string) bool { return rapid.IntRange(0, 3).Draw(t, what) == 0 }

// end ends a lease that has expired, or revokes it.
func (w *world) end(t *rapid.T) {
	ids := slices.Clone(w.leases)
	for _, g := range w.grants {
		ids = append(ids, g.lease)
	}
	l, anyway := w.byID[rapid.SampledFrom(ids).Draw(t, "lease")], seldom(t, "revoked")
	w.do(t, change{}, func(o *Op) { o.Reap(l, anyway) })
}

// twice does an operation, and with some luck once more, at the same moment. The repeat changes nothing.
func (w *world) twice(t *rapid.T, c change, operate func(o *Op) string) {
	var first, second string
	w.do(t, c, func(o *Op) { first = operate(o) })
	if !rapid.Bool().Draw(t, "repeated") {
		return
	}
	for len(w.died) > 0 { // the visit is a change, too
		w.visit(t)
		w.do(t, c, func(o *Op) { first = operate(o) })
	}
	before := w.text()
	w.do(t, c, func(o *Op) { second = operate(o) })
	if after := w.text(); after != before {
		t.Fatalf("a repeat changed\n%s\nto\n%s", before, after)
	}
	if first != "" && second != first {
		t.Fatalf("answered %s, and then %s", first, second)
	}
}

func (w *world) ask(t *rapid.T) {
	a := asked{by: one(t), atOnce: seldom(t, "at once")}
	a.Ask = store.Ask{
		Attempt: store.Attempt{Key: "k", ID: w.id()}, Lease: w.of(t, a.by).id,
		Session: "s", Owner: "o", Data: []byte("1"),
	}
	if a.Shared = rapid.Bool().Draw(t, "shared"); a.Shared {
		a.Limit = rapid.SampledFrom([]int{0, 2, 2, 3}).Draw(t, "limit")
	} else {
		a.Skip = seldom(t, "skip")
	}
	if seldom(t, "bind:ttl") {
		a.TTL = ticks(t, "ttl")
	}
	if seldom(t, "hold") {
		a.MinHold = ticks(t, "hold")
	}
	if len(w.asks) > 0 && seldom(t, "an earlier attempt") {
		again := rapid.SampledFrom(w.asks).Draw(t, "attempt")
		a.Ask, a.atOnce = again.Ask, again.atOnce
		a.Lease = w.of(t, a.by).id
	}
	if rapid.Bool().Draw(t, "again") {
		a.Last = w.row.Token
	}
	w.asks = append(w.asks, a)
	do := (*Op).Enqueue
	if a.atOnce {
		do = (*Op).Acquire
	}
	var answer store.Answer
	w.twice(t, change{
		by: a.by, leave: func(id store.AttemptID) bool { return id == a.ID },
		answered: func() *told {
			if answer.Outcome != store.Granted {
				return nil
			}
			return w.told(t, a.ID, a.by, &answer)
		},
	}, func(o *Op) string {
		answer = store.Answer{}
		do(o, w.row, &a.Ask, w.byID[a.Lease], &answer)
		if answer.Keepable && (w.wantedBeside(&told{asked: a}) || !w.row.by.is(o.By)) {
			t.Fatalf("instance %d is told to keep the key of grant %d", a.by, answer.Token)
		}
		return fmt.Sprint(answer.Outcome, answer.Token, answer.Position, answer.Keepable)
	})
}

func (w *world) attempt(t *rapid.T) asked {
	if len(w.asks) == 0 {
		t.Skip("nobody has asked")
	}
	back := rapid.IntRange(1, min(8, len(w.asks))).Draw(t, "attempt")
	return w.asks[len(w.asks)-back]
}

// look checks a waiter. If it still waits, something keeps it from the key.
func (w *world) look(t *rapid.T) {
	a := w.attempt(t)
	w.twice(t, change{by: a.by}, func(o *Op) string {
		answer := o.Check(w.row, a.Attempt)
		if answer.Outcome != store.Queued {
			return fmt.Sprint(answer.Outcome, answer.Token)
		}
		first := w.row.queue.first()
		held := slices.ContainsFunc(w.present(), func(h *holder) bool { return h.held(o.Now) })
		if first.Attempt == a.ID && first.lease.Alive(o.Now) && !held {
			t.Fatalf("nobody has the key, and %v waits", a.ID)
		}
		return fmt.Sprint(answer.Outcome, answer.Position)
	})
}

func (w *world) cancel(t *rapid.T) {
	a := w.attempt(t)
	w.twice(t, change{by: a.by, leave: func(id store.AttemptID) bool { return id == a.ID }}, func(o *Op) string {
		o.Cancel(w.row, a.Attempt)
		if v := w.row.queue.find(a.ID); v != nil && v.by.is(o.By) {
			t.Fatal("waits, cancelled")
		}
		return ""
	})
}

func (w *world) withdraw(t *rapid.T) {
	a := w.attempt(t)
	its := func(g *told) bool { return g.Attempt.ID == a.ID }
	w.twice(t, change{by: a.by, leave: func(id store.AttemptID) bool { return id == a.ID }, ends: its, free: its}, func(o *Op) string {
		o.Withdraw(w.row, a.Attempt)
		if h := w.row.heldBy(a.ID, o.Now); h != nil && h.by.is(o.By) && h.lease.Renewed() {
			t.Fatal("held, withdrawn")
		}
		return ""
	})
}

// claim claims one of the last grants, perhaps by the last waiter of its cohort that was served.
func (w *world) claim(t *rapid.T) (g *told, c store.Claim) {
	if len(w.grants) == 0 {
		t.Skip("nothing was granted")
	}
	g = w.grants[len(w.grants)-rapid.IntRange(1, min(4, len(w.grants))).Draw(t, "grant")]
	c = store.Claim{Key: "k", Token: g.token, Lease: g.lease}
	if l := w.byID[g.lease]; !l.Renewed() {
		c.Lease = store.LeaseID{}
	}
	next := g.token - g.first // so many were served
	if g.keepable && rapid.Bool().Draw(t, "taken") {
		// A later session of the instance has the key. The store knows nothing of it.
		if n := rapid.Int64Range(1, store.TokensPerGrant-1).Draw(t, "uses"); n > next {
			c.Token, c.Served = g.first+n, []store.AttemptID{w.id()}
		}
		return g, c
	}
	if w.living(g) && int(next) < len(g.cohort) && rapid.Bool().Draw(t, "serve") {
		for _, v := range w.row.queue.line {
			if store.HalfOf(v.Attempt) == g.cohort[next] {
				c.Token, c.Served = g.token+1, []store.AttemptID{v.Attempt}
			}
		}
	}
	return g, c
}

func (w *world) release(t *rapid.T) {
	g, c := w.claim(t)
	if !g.Shared {
		c.Outcome = rapid.SampledFrom([]store.ReleaseOutcome{store.NoOutcome, store.Success, store.Failure}).Draw(t, "outcome")
	}
	c.AtOnce = seldom(t, "at once")
	w.twice(t, change{
		by: g.by, ends: func(other *told) bool { return other == g },
		free: func(other *told) bool { return other == g && c.AtOnce }, leave: func(id store.AttemptID) bool { return slices.Contains(c.Served, id) },
	}, func(o *Op) string {
		status := o.Release(w.row, &c).Status
		if h := w.row.heldBy(g.Attempt.ID, o.Now); status == store.Holds && h != nil && h.Token == g.token {
			t.Fatalf("grant %d is held, released", g.token)
		}
		if w.living(g) && status != store.Holds {
			t.Fatalf("the release of grant %d is answered %d", g.token, status)
		}
		if status == store.Holds {
			g.over = true
		}
		return ""
	})
}

func (w *world) amend(t *rapid.T) {
	g, claim := w.claim(t)
	c := store.Change{Key: claim.Key, Token: claim.Token, Lease: claim.Lease, SetData: true, Data: []byte("2")}
	if rapid.Bool().Draw(t, "extend") {
		c.TTL = ticks(t, "ttl")
	}
	share := seldom(t, "share")
	w.twice(t, change{
		by: g.by, leave: func(id store.AttemptID) bool { return slices.Contains(claim.Served, id) },
	}, func(o *Op) string {
		was := w.living(g)
		var status store.ClaimStatus
		if len(claim.Served) > 0 {
			status = o.Adopt(w.row, &store.Adoption{Change: c, Served: claim.Served, Session: "s", Owner: "o", AcquiredAt: o.Now.Wall}).Status
		} else {
			status = o.Amend(w.row, &c).Status
		}
		if share && status == store.Holds {
			status = o.Downgrade(w.row, &c).Status
		}
		if (status == store.Holds) != was {
			t.Fatalf("the claim of grant %d is answered %d", g.token, status)
		}
		if status != store.Holds {
			return fmt.Sprint(status)
		}
		if g.keepable = false; w.row.keepable(o.Now) {
			t.Fatalf("the amended grant %d is kept", g.token)
		}
		if len(claim.Served) > 0 { // the grant is that of the waiter now
			g.token, g.Attempt.ID = c.Token, claim.Served[0]
		}
		if share {
			g.Shared, g.cohort = true, nil
		}
		return fmt.Sprint(status)
	})
}

func (w *world) move(t *rapid.T) {
	a := w.attempt(t)
	from, to := w.of(t, a.by), w.of(t, a.by)
	m := store.Move{Attempt: a.Attempt}
	w.twice(t, change{by: a.by}, func(o *Op) string {
		status := o.Move(w.row, m, from.id, to)
		if status == store.Holds && !to.Alive(o.Now) {
			t.Fatal("moved to a lease that has ended")
		}
		if h := w.row.heldBy(a.ID, o.Now); h != nil && status == store.Holds {
			for _, g := range w.grants {
				if g.Attempt.ID == a.ID && g.token == h.Token {
					g.lease = h.lease.id
				}
			}
		}
		return ""
	})
}

func (w *world) signal(t *rapid.T) {
	g := store.Signal{Kind: rapid.SampledFrom([]store.SignalKind{store.Stop, store.Break}).Draw(t, "kind"), Key: "k"}
	if len(w.grants) > 0 && rapid.Bool().Draw(t, "one") {
		g.Token = w.grants[len(w.grants)-1].token
	}
	// A break ends bind:ttl locks, and holds. A session's lock stays until its sidecar gives it up.
	its := func(held *told) bool { return g.Kind == store.Break && (g.Token == 0 || g.Token == held.token) }
	w.do(t, change{
		by: one(t), free: its, ends: func(held *told) bool { return its(held) && !w.byID[held.lease].Renewed() },
	}, func(o *Op) { o.Signal(w.row, g) })
}

func (w *world) watch(t *rapid.T) {
	by := one(t)
	l := w.of(t, by)
	if !l.Alive(w.moment()) || seldom(t, "unwatch") {
		w.twice(t, change{by: by}, func(o *Op) string { o.Unwatch(w.row, nil); return "" })
		return
	}
	w.twice(t, change{by: by}, func(o *Op) string { o.Watch(w.row, l); return "" })
}

// checks is the number of runs without -rapid.checks: seconds. Rare states need many runs.
const checks = "3000"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", checks); err != nil {
		panic(err)
	}
	m.Run()
}
