package cas

import (
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// lockedPatience is how long a call for one key tries again while another session of the server keeps the record locked.
const lockedPatience = time.Second

var errRowLocked = errors.New("another session of the store's server keeps the record of the key locked")

// job is what a call does with one key, and what it has learned so far.
type job struct {
	key  string // as the backend knows it
	name string // as callers know it
	// items are done together, in their order, with one swap. Most jobs have one item, which needs no memory of its own: first.
	items []item
	first [1]item
	// leases are those whose states the items need, beside those of the record.
	leases []store.LeaseID
	// mail goes with the swap.
	mail []mail

	// How it is done.

	// blind: the first try may assume that a record which this instance has not seen does not exist.
	blind bool
	// bump: the record changes in any case. forget: it is deleted if it still is as assumed.
	bump, forget bool
	// reads: the items only read. Then a record is settled only if somebody waits for or watches the key.
	reads bool
	// asks: an item is an ask. If the record would be too large, asks are refused. Without any, the call fails.
	asks bool
	// beside: the call has other jobs, which a fault of this record must not harm.
	beside bool
	// locked is called if another session keeps the record locked; nil: the items are answered.
	locked func()

	// The run fills the following fields.

	view
	race race
	// quiet is when the quiet time of the key's server ends, if it refused a swap. Of several servers, each has its own.
	quiet time.Time
	// deaths counts the swaps that failed because a lease had died.
	deaths int
	// lockedAt is when a swap was first refused because another session kept the record locked.
	lockedAt time.Time
	// unchanged: a read answered the items.
	unchanged bool
}

// view is what a job knows of its record.
type view struct {
	// rec is the record that the next turn assumes; nil: it must be read first. fresh: it was read for this call, and is not only remembered.
	rec   *Record
	fresh bool
	// was is what the data of rec says, if it was decoded before; otherwise nil.
	was *key.Record
	// states are those of leases that were read for this call.
	states map[store.LeaseID]LeaseState
	// seen is the version at the last read, and dead are the leases that were dead then: see proved.
	seen int64
	dead []store.LeaseID
}

// item is one item of a call. do runs the machine and writes the answer, each time anew. It returns false if it
// needs the state of a lease. answer and lock are what contains tokens; at most one of them is set.
type item struct {
	do     func(*turn) bool
	ask    bool
	answer *store.Answer
	status *store.ClaimStatus // of an item that makes a claim
	lock   *store.Lock
	// final: the asker relies on the answer, if it is a grant, a skip or a claim's status, also if only a read gave it.
	final bool
	// locked answers if another session keeps the record locked; nil: the answer or status says so.
	locked func()
}

// add adds an item.
func (j *job) add(it item) {
	if j.items == nil {
		j.items = j.first[:0]
	}
	j.items = append(j.items, it)
	j.asks = j.asks || it.ask
}

// hasEnding reports whether a job does more than to ask: it releases, withdraws, or visits a key after a death. See [Swap.Ends].
func (j *job) hasEnding() bool {
	return !j.asks || slices.ContainsFunc(j.items, func(it item) bool { return !it.ask })
}

// refuse answers and removes the asks.
func (j *job) refuse() {
	j.items = slices.DeleteFunc(j.items, func(it item) bool {
		if it.ask {
			*it.answer = store.Answer{Outcome: store.QueueFull}
		}
		return it.ask
	})
	j.asks = false
}

// answerLocked answers that another session keeps the record locked. It reports whether there are items, and all have such an answer.
func (j *job) answerLocked() bool {
	if j.locked != nil {
		j.locked()
		return true
	}
	for i := range j.items {
		switch it := &j.items[i]; {
		case it.locked != nil:
			it.locked()
		case it.answer != nil:
			*it.answer = store.Answer{Outcome: store.RowLocked}
		case it.status != nil:
			*it.status = store.ClaimRowLocked
			if it.lock != nil {
				*it.lock = store.Lock{} // that of an earlier turn
			}
		default:
			return false
		}
	}
	return len(j.items) > 0 // a job without any sends letters
}

// relied reports whether the asker relies on the answer.
func (it *item) relied() bool {
	return it.final && (it.answer == nil || it.answer.Outcome == store.Granted || it.answer.Outcome == store.Skipped)
}

// loses notes that another swap came first, and the record that it left.
func (j *job) loses(r *Record, took time.Duration) {
	j.race.lost, j.race.took = j.race.lost+1, took
	j.read(r, nil)
}

// waitsForLock reports whether a job tries again although another session keeps the record locked. Mostly that is the swap of a sidecar
// that is faster. Beside other jobs it does not, so that none of them waits.
func (j *job) waitsForLock() bool {
	if j.lockedAt.IsZero() {
		j.lockedAt = time.Now()
	}
	return !j.beside && time.Since(j.lockedAt) < lockedPatience
}
