package key

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// The promises of store/doc.go, seen from outside: by what instances were told, and who waits.

// present are the holders that keep the key from others: their lease is not dead, or there is a hold. (The end of a hold is no
// event: waiters check again.)
func (w *world) present() (found []*holder) {
	for h := range w.row.holders() {
		if !h.lease.Dead() || h.hold != nil {
			found = append(found, h)
		}
	}
	return found
}

// living reports whether the instance rightly believes that it has this grant.
func (w *world) living(g *told) bool { return !g.over && w.byID[g.lease].Alive(w.moment()) }

// keeps reports whether a grant keeps the key from others.
func (w *world) keeps(g *told) bool { return w.living(g) || g.kept > w.now }

// check is true at any time.
func (w *world) check(t *rapid.T) {
	w.exclusion(t)
	w.shares(t)
	w.keepersKnow(t)
	if len(w.died) == 0 {
		w.nobodyFits(t)
	}
}

// 1: at most one exclusive grant, or only shares.
func (w *world) exclusion(t *rapid.T) {
	exclusive, shared := 0, 0
	for _, g := range w.grants {
		switch {
		case !w.keeps(g):
		case g.Shared:
			shared++
		default:
			exclusive++
		}
	}
	if exclusive > 1 || exclusive == 1 && shared > 0 {
		t.Fatalf("%d exclusive grants and %d shares at a time", exclusive, shared)
	}
}

// 19: never more shares than their limit, with different slots, under one limit, and in the order of their tokens.
func (w *world) shares(t *rapid.T) {
	r, slots := w.row, map[int]bool{}
	for i, h := range r.shares {
		if h.Limit != r.limit && w.askOf(h.Attempt).Shared {
			t.Fatalf("a share with limit %d of %d", h.Limit, r.limit)
		}
		if i > 0 && h.Token <= r.shares[i-1].Token {
			t.Fatalf("share %d behind %d", h.Token, r.shares[i-1].Token)
		}
		if slots[h.Slot] && r.limit > 0 {
			t.Fatalf("two shares in slot %d", h.Slot)
		}
		if slots[h.Slot] = true; r.limit > 0 && h.Slot >= r.limit {
			t.Fatalf("slot %d of %d", h.Slot, r.limit)
		}
	}
	if r.limit > 0 && len(r.shares) > r.limit {
		t.Fatalf("%d shares of %d", len(r.shares), r.limit)
	}
	for _, v := range r.queue.line {
		if v.Shared && v.Limit != r.limit && v.lease.Alive(w.moment()) {
			t.Fatalf("a waiter with limit %d of %d", v.Limit, r.limit)
		}
	}
}

// askOf is the last ask of an attempt.
func (w *world) askOf(id store.AttemptID) store.Ask {
	for _, a := range slices.Backward(w.asks) {
		if a.ID == id {
			return a.Ask
		}
	}
	return store.Ask{}
}

// 3: the tokens of a key grow, also beyond those of cohorts.
func (w *world) tokensGrow(t *rapid.T, granted []*told, last int64) {
	slices.SortFunc(granted, func(a, b *told) int { return int(a.token - b.token) })
	for _, g := range granted {
		if g.token <= last {
			t.Fatalf("token %d after %d", g.token, last)
		}
		if last = g.token + int64(len(g.cohort)); g.keepable {
			last = g.token + store.TokensPerGrant - 1
		}
		if !w.living(g) {
			t.Fatalf("grant %d under a lease that has ended", g.token)
		}
	}
	if last > w.tokens {
		t.Fatalf("token %d is not reserved", last)
	}
}

// 5: a key with living waiters is never free, and a shared lock grants its first waiters as soon as they fit.
func (w *world) nobodyFits(t *rapid.T) {
	first, present := w.row.queue.first(), w.present()
	if first == nil || !first.lease.Alive(w.moment()) {
		return
	}
	if len(present) == 0 {
		t.Fatalf("the key is free, and %v waits", first.Attempt)
	}
	own := slices.ContainsFunc(present, func(h *holder) bool { return h.Attempt == first.Attempt })
	full := w.row.limit > 0 && len(present) >= w.row.limit
	if len(w.row.shares) > 0 && first.Shared && !full && !own {
		t.Fatalf("%v fits, and waits", first.Attempt)
	}
}

// 5: an earlier living waiter is never overtaken.
func (w *world) nobodyIsOvertaken(t *rapid.T, before []*waiter, granted []*told) {
	for _, g := range granted {
		for _, v := range before {
			if v.Attempt == g.Attempt.ID {
				break
			}
			if w.row.queue.find(v.Attempt) == v && v.lease.Alive(w.moment()) {
				t.Fatalf("grant %d overtakes %v", g.token, v.Attempt)
			}
		}
	}
	for i, g := range granted { // they are in the order of their tokens
		for _, earlier := range granted[:i] {
			if at, than := w.place(before, g), w.place(before, earlier); at >= 0 && at < than {
				t.Fatalf("grant %d comes before an earlier waiter's", earlier.token)
			}
		}
	}
}

// place is that of a waiter, which it lost if its lease ended.
func (w *world) place(line []*waiter, g *told) int {
	return slices.IndexFunc(line, func(v *waiter) bool { return v.Attempt == g.Attempt.ID && v.lease.Alive(w.moment()) })
}

// 5: a living waiter leaves the queue only with a grant or a result, or by its own wish.
func (w *world) nobodyIsLost(t *rapid.T, before []*waiter, granted []*told, c change, o *Op) {
	for _, v := range before {
		left := w.row.queue.find(v.Attempt) != v
		why := slices.ContainsFunc(granted, func(g *told) bool { return g.Attempt.ID == v.Attempt }) ||
			slices.ContainsFunc(o.News, func(n News) bool { return n.ID == v.Attempt && n.Answer.Outcome == store.Skipped }) ||
			c.leave != nil && c.leave(v.Attempt)
		if left && !why && v.lease.Alive(w.moment()) {
			t.Fatalf("%v is lost from the queue", v.Attempt)
		}
	}
}

// A living grant, and a hold, stay until the operation that ends them.
func (w *world) grantsStay(t *rapid.T, c change) {
	for _, g := range w.grants {
		if h := w.row.heldBy(g.Attempt.ID, w.moment()); w.living(g) && (h == nil || h.Token != g.token) {
			if c.ends == nil || !c.ends(g) {
				t.Fatalf("grant %d is lost", g.token)
			}
			g.over = true
		}
		kept := false
		for h := range w.row.holders() {
			kept = kept || h.Token == g.token && h.onHold(w.moment())
		}
		if g.kept > w.now && !kept {
			if c.free == nil || !c.free(g) {
				t.Fatalf("the hold of grant %d is lost", g.token)
			}
			g.kept = 0
		}
	}
}

// A keepable grant is the exclusive lock of a session, to the instance that had the key before, while nobody else wants it.
func (w *world) keepsRightly(t *rapid.T, granted []*told, last int64) {
	for _, g := range granted {
		if g.keepable && (g.Last != last || last == 0 || g.Shared || g.TTL > 0 || g.MinHold > 0 || g.Skip || w.wantedBeside(g)) {
			t.Fatalf("grant %d after %d is keepable: %+v", g.token, last, g)
		}
	}
}

// wantedBeside reports whether a living waiter or watcher of another instance wants the key.
func (w *world) wantedBeside(g *told) bool {
	by := w.instances[g.by]
	for _, v := range w.row.watchers {
		if !v.by.is(by) && v.lease.Alive(w.moment()) {
			return true
		}
	}
	return slices.ContainsFunc(w.row.queue.line, func(v *waiter) bool { return !v.by.is(by) && v.lease.Alive(w.moment()) })
}

// An instance that may keep the key was told of each other instance that wants it.
func (w *world) keepersKnow(t *rapid.T) {
	for _, g := range w.grants {
		if g.keepable && w.living(g) && !g.recalled && w.wantedBeside(g) {
			t.Fatalf("the key is kept by grant %d, and nobody recalls it", g.token)
		}
	}
	if w.row.keepable(w.moment()) && !slices.ContainsFunc(w.grants, func(g *told) bool { return g.keepable && g.token == w.row.Token && w.living(g) }) {
		t.Fatalf("nobody was told to keep grant %d", w.row.Token)
	}
}

// recalled notes a recall. It is for the instance that may keep the key, and not by itself.
func (w *world) recalled(t *rapid.T, n News) {
	known := false
	for _, g := range w.grants {
		if g.keepable && w.living(g) && w.index(n.To) == g.by {
			known, g.recalled = true, true
		}
	}
	if !known || n.Key != w.row.Key || n.Answer.Outcome != 0 || n.ID != (store.AttemptID{}) {
		t.Fatalf("a recall that nobody expects: %+v", n)
	}
}

// A cohort are the first waiters, for whom their sidecar may decide.
func (w *world) cohortIsNext(t *rapid.T, g *told) {
	for i, half := range g.cohort {
		v := w.row.queue.line[i]
		if store.HalfOf(v.Attempt) != half || v.lease.id != g.lease || v.Shared || v.Skip || v.TTL > 0 || v.MinHold > 0 {
			t.Fatalf("%v is in the cohort of grant %d", v.Attempt, g.token)
		}
	}
}

// After a visit, nothing is left of a dead lease, except for what a hold keeps.
func (w *world) deadAreGone(t *rapid.T, died []*Lease) {
	dead := func(l *Lease) bool { return slices.Contains(died, l) }
	for h := range w.row.holders() {
		if dead(h.lease) && !h.onHold(w.moment()) {
			t.Fatalf("grant %d is left of a dead lease", h.Token)
		}
	}
	for _, v := range w.row.queue.line {
		if dead(v.lease) {
			t.Fatalf("%v waits under a dead lease", v.Attempt)
		}
	}
	for _, k := range w.row.skipped {
		if dead(k.lease) {
			t.Fatalf("the result of %v is kept under a dead lease", k.Attempt)
		}
	}
	for _, v := range w.row.watchers {
		if dead(v.lease) {
			t.Fatalf("%s watches under a dead lease", v.by.Name)
		}
	}
}

// Each watcher hears of each grant.
func (w *world) watchersHear(t *rapid.T, o *Op, granted []*told) {
	for _, v := range w.row.watchers {
		for _, g := range granted {
			if !slices.ContainsFunc(o.News, func(n News) bool {
				return n.To.is(v.by) && n.Event != nil && n.Event.Kind == store.EventAcquired && n.Event.Token == g.token
			}) {
				t.Fatalf("%s does not hear of grant %d", v.by.Name, g.token)
			}
		}
	}
}
