package keep

import (
	"sync/atomic"
	"time"
)

const (
	// paysFrom is how often a kept key must be taken so that it has saved more than its recall costs.
	paysFrom = 3
	// maxStreak limits how many grants in a row are needed after grants that did not pay.
	maxStreak = 64
)

const (
	// worthTakes is how many takes save what a recall costs, when the store's statements are shared by many calls.
	worthTakes = 6
	// worthRecalls is how many recalls are looked at.
	worthRecalls = 64
	// worthTries: as long as keys are not worth keeping, one of so many is kept nevertheless, to find out when they are.
	worthTries = 16
)

// worth is whether keeping keys has paid lately, for all keys together. A key that is new says nothing about itself yet.
type worth struct{ takes, recalls, asks atomic.Int64 }

// recalled counts a recall. What is long ago counts less.
func (w *worth) recalled() {
	if w.recalls.Add(1) >= worthRecalls {
		w.recalls.Store(worthRecalls / 2)
		w.takes.Store(w.takes.Load() / 2)
	}
}

// tries reports whether to keep a key.
func (w *worth) tries() bool {
	recalls := w.recalls.Load()
	return recalls < worthRecalls/4 || w.takes.Load() >= worthTakes*recalls || w.asks.Add(1)%worthTries == 0
}

// judge notes once whether a grant has paid. The caller holds the shard's mutex.
func (e *entry) judge(g *Grant) (paid bool) {
	paid = g.takes >= paysFrom
	switch {
	case g.judged:
	case paid:
		e.streak /= 2
		e.missing = 0
	default:
		e.streak = min(max(2*e.streak, 1), maxStreak)
		e.missing = e.streak
	}
	g.judged = true
	return paid
}

// Judge notes that a grant was recalled by another sidecar, and reports whether the grant has paid.
func (t *Table) Judge(g *Grant) (paid bool) {
	sh := t.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !g.judged {
		t.worth.recalled()
	}
	return sh.entry(g.Key).judge(g)
}

// Released records that the store has confirmed a release, and under which token it knew this sidecar.
func (t *Table) Released(key string, last int64) {
	sh, now := t.shard(key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(key)
	e.last, e.released = last, now
	e.missing = max(e.missing-1, 0)
	t.rest(sh, e, now)
}

// Last is the Last of an ask for a key: see [store.Ask]. It is zero if the key is not to be kept: it was not released here lately, or keeping
// it has not paid.
func (t *Table) Last(key string, now time.Time) int64 {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[key]
	if e == nil || e.missing > 0 || now.Sub(e.released) >= t.keep || !t.worth.tries() {
		return 0
	}
	return e.last
}

// Elsewhere records that another sidecar holds a key, or waits for it. So the grants here were not in a row.
func (t *Table) Elsewhere(key string) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[key]; e != nil {
		e.missing = e.streak
	}
}
