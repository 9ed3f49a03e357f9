package keep

import "time"

// Due returns what is due: grants that the caller must give up, because the keys were not used for long, or because the grant is too old, and keys
// whose holders have had them for so long that the store must be told of them. next is the time until the next call; with [Table.Wake], it may
// come earlier.
func (t *Table) Due() (giveUp []*Grant, tell []string, next time.Duration) {
	now := t.clk.Now()
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for e := sh.idle.first; e != nil && (now.Sub(e.since) >= forgetAfter || t.tooMany(sh) > 0); e = sh.idle.first {
			e.leaveList()
			delete(sh.entries, e.key)
		}
		tooMany := t.tooMany(sh)
		for e := sh.kept.first; e != nil; e = e.next {
			if e.kept.givenUp == nil && (now.Sub(e.since) >= t.keep || now.Sub(e.kept.asked) >= MaxAge || tooMany > 0) {
				giveUp = append(giveUp, e.giveUp())
			}
			tooMany--
		}
		tell = t.longHeld(sh, &sh.taken, t.shownAfter, now, tell)
		tell = t.longHeld(sh, &sh.won, MaxAge, now, tell)
		sh.mu.Unlock()
	}
	if t.busy.Load() == 0 {
		return giveUp, tell, time.Hour
	}
	return giveUp, tell, min(max(t.keep/8, minPause), maxPause)
}

// The pauses between two calls of Due, while a key is kept or was taken.
const (
	minPause = 5 * time.Millisecond
	maxPause = 50 * time.Millisecond
)

// longHeld removes the entries that came into a list so long ago, and adds their keys to tell. The caller holds sh.mu.
func (t *Table) longHeld(sh *shard, l *list, after time.Duration, now time.Time, tell []string) []string {
	for e := l.first; e != nil && now.Sub(e.since) >= after; e = l.first {
		tell = append(tell, e.key)
		e.leaveList()
		t.busy.Add(-1)
		t.rest(sh, e, now)
	}
	return tell
}
