package keep

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// recallCosts is how many statements a recall costs beside those that are shared: those that read the holder, queue the call and release the
	// key, the two notifications, and what the call that comes after the others of its batch needs alone. bench/LIMITS.md has the measurement.
	recallCosts = 5
	// pairCosts is how many statements an acquire and its release take part in. A take saves its share of them.
	pairCosts = 2
	// leastPrice limits the price of a recall from below.
	leastPrice = 3
	// maxStreak limits how many grants in a row are needed after recalls that did not pay.
	maxStreak = 64
)

// price is how many takes save what a recall costs. If many calls share a statement, a take saves little of it.
func (t *Table) price() int {
	return max(leastPrice, int(math.Ceil(recallCosts*t.together()/pairCosts)))
}

const (
	// worthFrom is from how many recalls of new keys on it is judged whether new keys are worth keeping. At worthRecalls the counts are halved.
	worthFrom    = 8
	worthRecalls = 16
	// worthTries is after what time a new key is kept, as long as they are not worth it, to find out when they are.
	worthTries = time.Second
)

// worth is whether keeping new keys has paid lately: those that have no history of their own yet. tried is when one was kept last to find out, and recalled
// when one was recalled last, both after the table was made.
type worth struct{ takes, recalls, tried, recalled atomic.Int64 }

// countRecall counts the recall of a new key. What is long ago counts less.
func (w *worth) countRecall(since time.Duration) {
	w.recalled.Store(int64(since))
	if w.recalls.Add(1) >= worthRecalls {
		w.recalls.Store(worthRecalls / 2)
		w.takes.Store(w.takes.Load() / 2)
	}
}

// tries reports whether to keep a new key. since is the time since the table was made. A judgment is forgotten when nothing was recalled for long: it may have
// ended that recalls are heard, and then no try would show that keeping pays again.
func (w *worth) tries(price int, since time.Duration) bool {
	if recalls := w.recalls.Load(); recalls < worthFrom || w.takes.Load() >= int64(price)*recalls {
		return true
	}
	if since-time.Duration(w.recalled.Load()) >= forgetAfter {
		w.recalls.Store(0)
		w.takes.Store(0)
		return true
	}
	last := w.tried.Load()
	return since-time.Duration(last) >= worthTries && w.tried.CompareAndSwap(last, int64(since))
}

// isNew reports whether the key has no history of its own, so that the other new keys decide whether it is kept.
func (e *entry) isNew(price int) bool { return !e.paid && e.takes < price }

// Judge notes, once, that a grant was recalled by another sidecar, and reports whether keeping the key has paid since the recall before.
func (t *Table) Judge(g *Grant) (paid bool) {
	sh, price := t.shard(g.Key), t.price()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(g.Key)
	if g.judged {
		return e.paid
	}
	g.judged = true
	if e.isNew(price) {
		t.worth.countRecall(t.clk.Now().Sub(t.made))
	}
	if e.paid = e.takes >= price; e.paid {
		e.streak /= 2
		e.missing = 0
	} else {
		e.streak = min(max(2*e.streak, 1), maxStreak)
		e.missing = e.streak
	}
	e.takes = 0
	return e.paid
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
// it, or keys of which as little is known, has not paid.
func (t *Table) Last(key string, now time.Time) int64 {
	sh, price := t.shard(key), t.price()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[key]
	if e == nil || e.missing > 0 || now.Sub(e.released) >= t.keep || e.isNew(price) && !t.worth.tries(price, now.Sub(t.made)) {
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
