package keep

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
)

const (
	// MaxEntries is the usual limit of a table.
	MaxEntries = 16_384
	shards     = 64
	// forgetAfter is for how long a key is remembered that is not kept.
	forgetAfter = time.Minute
)

// Table contains the keys that this sidecar keeps, and those that calls here ask for or have lately released. Its methods do not block.
type Table struct {
	// keep is for how long a key is kept without use.
	keep time.Duration
	// most limits the keys of a shard that are remembered while no call is present, and so the kept keys.
	most int
	// shownAfter is after what time the store is told of a holder that took a key.
	shownAfter time.Duration
	clk        clock.Clock
	made       time.Time
	// together is how many calls share a statement now.
	together func() float64
	// count is the number of keys that are kept or being given up. busy also counts the keys with a holder that the store may have to be told
	// of: see Due.
	count, busy atomic.Int64
	// worth is what new keys have saved and cost lately.
	worth worth
	// missed is when recalls may have been missed last, or nil.
	missed atomic.Pointer[time.Time]
	// Wake receives when the first key is busy.
	Wake chan struct{}

	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu      sync.Mutex
	entries map[string]*entry
	// kept are the entries of kept keys, idle the others without a present call: the one that has been so for longest is the first. taken are
	// those that were taken, won those with a grant of the store that may be kept, each in the order in which this happened.
	kept, idle, taken, won list
}

// entry is what is known of a key. The shard's mutex guards it.
type entry struct {
	key string
	// present is the number of calls for the key that have not returned.
	present int
	// kept is the grant while the key is kept or given up.
	kept *Grant
	// since is when the entry was put into its list.
	since time.Time
	// last is the token under which the store knew this sidecar as the holder, by a release that it has confirmed; zero: unknown.
	// released is when it has.
	last     int64
	released time.Time
	// recalled is when the last recall came.
	recalled time.Time
	// takes is how often the key was taken since its last recall. paid: the takes before that recall were worth it.
	takes int
	paid  bool
	// streak is how many grants in a row are needed before the key is kept again after a grant that does not pay; missing is how many of
	// these are missing now.
	streak, missing int

	in         *list
	prev, next *entry
}

// New makes an empty table, which keeps keys for so long without use, and remembers about so many keys without a present call. shownAfter is after what time the
// store is told of a holder that took a key. together returns how many calls share a statement.
func New(keep time.Duration, most int, shownAfter time.Duration, together func() float64, clk clock.Clock) *Table {
	t := &Table{keep: keep, most: max(most/shards, 1), shownAfter: shownAfter, together: together, clk: clk, made: clk.Now(), Wake: make(chan struct{}, 1), seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].entries = make(map[string]*entry)
	}
	return t
}

func (t *Table) shard(key string) *shard { return &t.shards[maphash.String(t.seed, key)%shards] }

// entry returns the entry of a key, which it makes if there is none. The caller holds sh.mu.
func (sh *shard) entry(key string) *entry {
	e := sh.entries[key]
	if e == nil {
		e = &entry{key: key}
		sh.entries[key] = e
	}
	return e
}

// CallCame records that a call for a key is present. A kept key stays in its list, because the call may neither take it nor give it up.
func (t *Table) CallCame(key string) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(key)
	e.present++
	if e.in == &sh.idle {
		e.leaveList()
	}
}

// CallLeft records that it is not any more.
func (t *Table) CallLeft(key string) {
	sh, now := t.shard(key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[key]
	e.present--
	t.rest(sh, e, now)
}

// rest puts an entry without a present call into the list of idle ones, unless it is in another one. The caller holds sh.mu.
func (t *Table) rest(sh *shard, e *entry, now time.Time) {
	switch {
	case e.present > 0 || e.in != nil:
		return
	case e.last == 0 && e.recalled.IsZero() && e.streak == 0: // nothing is known
		delete(sh.entries, e.key)
		return
	}
	sh.idle.push(e, now)
	t.makeRoom(sh)
}

// makeRoom forgets the key that has been idle for longest if there are too many entries. If all of them are kept, Due returns some. The caller
// holds sh.mu.
func (t *Table) makeRoom(sh *shard) {
	switch oldest := sh.idle.first; {
	case t.tooMany(sh) <= 0:
	case oldest == nil:
		clock.Wake(t.Wake)
	default:
		oldest.leaveList()
		delete(sh.entries, oldest.key)
	}
}

// tooMany is how many entries are above the limit, if it is positive.
func (t *Table) tooMany(sh *shard) int { return sh.kept.n + sh.idle.n - t.most }

// Keep keeps the key of a grant whose lock has left its session. It returns false if the key must be released.
func (t *Table) Keep(g *Grant, now time.Time) bool {
	sh := t.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(g.Key)
	if e.present > 0 || e.kept != nil || t.mayBeRecalled(e, g) || !g.usable(now) {
		t.rest(sh, e, now)
		return false
	}
	e.kept = g
	t.count.Add(1)
	t.becomesBusy(sh, e)
	sh.kept.push(e, now)
	t.makeRoom(sh)
	return true
}

// mayBeRecalled reports whether a recall has come, or may have been missed, since the ask of a grant. The caller holds the shard's mutex.
func (t *Table) mayBeRecalled(e *entry, g *Grant) bool {
	missed := t.missed.Load()
	return !e.recalled.Before(g.asked) || missed != nil && !missed.Before(g.asked)
}

// Won records that a session here has got a lock by a grant that may be kept.
func (t *Table) Won(g *Grant) {
	sh, now := t.shard(g.Key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(g.Key)
	t.becomesBusy(sh, e)
	sh.won.push(e, now)
}

// becomesBusy takes an entry out of its list. If it was idle, Due looks at it from now on. The caller holds sh.mu.
func (t *Table) becomesBusy(sh *shard, e *entry) {
	if e.in != &sh.taken && e.in != &sh.won && t.busy.Add(1) == 1 {
		clock.Wake(t.Wake)
	}
	e.leaveList()
}

// Taken is what a call that asks for a key finds: see [Table.Take].
type Taken uint8

const (
	// NotKept: the store must be asked.
	NotKept Taken = iota
	// Got: the call has the key, under the token.
	Got
	// MustGiveUp: the caller must release the grant, and then call GaveUp. It waits for that, and asks.
	MustGiveUp
	// BeingGivenUp: another one releases the grant. The caller waits for that, and asks.
	BeingGivenUp
)

// Take takes a kept key for a call that is present. under is the lease of the call, or nil if the call cannot take.
func (t *Table) Take(key string, under *heartbeat.Lease, now time.Time) (how Taken, g *Grant, token int64) {
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[key]
	switch {
	case e == nil || e.kept == nil:
		return NotKept, nil, 0
	case e.kept.givenUp != nil:
		return BeingGivenUp, e.kept, 0
	case under == nil || under != e.kept.Lease || !e.kept.usable(now):
		return MustGiveUp, e.giveUp(), 0
	}
	g = e.kept
	e.leaveList()
	e.kept = nil
	t.count.Add(-1) // busy stays: the key is taken
	sh.taken.push(e, now)
	g.last++
	if e.isNew(t.price()) {
		t.worth.takes.Add(1)
	}
	e.takes++
	return Got, g, g.last
}

// Return gives a key back that was taken, and that nobody got. The caller releases the grant, and then calls GaveUp.
func (t *Table) Return(g *Grant) {
	sh, now := t.shard(g.Key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(g.Key)
	t.becomesBusy(sh, e)
	sh.kept.push(e, now)
	e.kept = g
	t.count.Add(1)
	e.giveUp()
}

// GiveUp begins to give a key up, if it is kept. If the result is MustGiveUp, the caller releases the grant, and then calls GaveUp.
func (t *Table) GiveUp(key string) (how Taken, g *Grant) {
	how, g, _ = t.Take(key, nil, time.Time{})
	return how, g
}

// GiveUpAll begins to give up all kept keys, or those under a lease if it is not nil. The caller releases the grants, and calls GaveUp for each. With
// nil, grants that were asked for before this are not kept any more, because their recalls may have been missed.
func (t *Table) GiveUpAll(under *heartbeat.Lease) (must []*Grant) {
	if now := t.clk.Now(); under == nil {
		t.missed.Store(&now)
	}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			if g := e.kept; g != nil && g.givenUp == nil && (under == nil || g.Lease == under) {
				must = append(must, e.giveUp())
			}
		}
		sh.mu.Unlock()
	}
	return must
}

// giveUp changes a kept key to one that is being given up. The caller holds the shard's mutex.
func (e *entry) giveUp() *Grant {
	e.kept.givenUp, e.kept.try = make(chan struct{}), newTry()
	return e.kept
}

// GaveUp records that the outcome of a grant's release is known, or does not matter any more. confirmed: the store has freed the key. It returns false
// if this was recorded before.
func (t *Table) GaveUp(g *Grant, confirmed bool) (first bool) {
	sh, now := t.shard(g.Key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[g.Key]
	if e == nil || e.kept != g {
		return false
	}
	e.kept = nil
	e.leaveList()
	if confirmed {
		e.released, e.last = now, g.Visible
	}
	t.count.Add(-1)
	t.busy.Add(-1)
	t.rest(sh, e, now)
	close(g.givenUp)
	close(g.try.ended)
	return true
}

// Fails records that a try of a grant's release has failed. The caller tries again.
func (t *Table) Fails(g *Grant, why error) {
	sh := t.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[g.Key]; e == nil || e.kept != g {
		return // another try has succeeded
	}
	g.try.err = why
	close(g.try.ended)
	g.try, g.failed, g.hastened = newTry(), true, false
}

// NextTry returns the try that will end next. If one has failed, and no call has begun another one since, the caller must begin it: the usual one comes
// after a pause, and the store may answer before.
func (t *Table) NextTry(g *Grant) (next *Try, begin bool) {
	sh := t.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entries[g.Key]; e == nil || e.kept != g {
		return g.try, false // which has ended
	}
	begin = g.failed && !g.hastened
	g.hastened = g.hastened || begin
	return g.try, begin
}

// Recall records that another sidecar wants a key, or that this one watches it. If the key is kept, it returns the grant: the caller releases it, and
// then calls GaveUp.
func (t *Table) Recall(key string) (g *Grant) {
	sh, now := t.shard(key), t.clk.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entry(key)
	e.recalled = now
	if e.kept == nil || e.kept.givenUp != nil {
		t.rest(sh, e, now)
		return nil
	}
	return e.giveUp()
}

// Recalled reports whether a recall has come since the ask of a grant.
func (t *Table) Recalled(g *Grant) bool {
	sh := t.shard(g.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[g.Key]
	return e != nil && !e.recalled.Before(g.asked)
}

// IsKept reports whether a key is kept, or being given up.
func (t *Table) IsKept(key string) bool { return t.keptAs(key, func(*Grant) bool { return true }) }

// IsFree reports whether that is so, and no try to give the key up has failed: whoever asks here gets the key, or at least soon.
func (t *Table) IsFree(key string) bool {
	return t.keptAs(key, func(g *Grant) bool { return !g.failed })
}

func (t *Table) keptAs(key string, as func(*Grant) bool) bool {
	if t.count.Load() == 0 {
		return false
	}
	sh := t.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entries[key]
	return e != nil && e.kept != nil && as(e.kept)
}

// Count is the number of keys that are kept or being given up.
func (t *Table) Count() int { return int(t.count.Load()) }

// GivenUp returns the grants that are being given up.
func (t *Table) GivenUp() (all []*Grant) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			if e.kept != nil && e.kept.givenUp != nil {
				all = append(all, e.kept)
			}
		}
		sh.mu.Unlock()
	}
	return all
}

// list contains entries in the order in which they came. Its elements are linked by themselves, so a move makes no object. With container/list, the two
// moves of a taken and released key take ten times as long (0.02 µs and 0.3 µs, and two objects of 48 bytes).
type list struct {
	first, last *entry
	n           int
}

func (l *list) push(e *entry, now time.Time) {
	e.in, e.since, e.prev, e.next = l, now, l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
	l.n++
}

// leaveList removes an entry from its list, if it is in one.
func (e *entry) leaveList() {
	l := e.in
	if l == nil {
		return
	}
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.in, e.prev, e.next = nil, nil, nil
	l.n--
}
