// Package deadlock finds sessions that wait for each other, so that none of them can go on.
//
// The search plays what would happen. A session that waits for nothing releases its locks. They are handed on by the
// rules of the queue. A session whose calls have all been granted releases its locks in turn. The sessions that still
// wait at the end are stuck. Each of them waits for a holder that is stuck, so each way along them leads into a circle.
package deadlock

import "time"

// Party is a session, or an owner within a session. The zero Party is a call or a lock that belongs to no session. Nothing
// else is known of its app, so the search takes it for one that can go on.
type Party struct {
	Pod, Session, Owner string
}

// Key is a key for which calls wait.
type Key struct {
	Name  string
	Holds []Hold
	Calls []Call // in their order
}

// Hold is a grant. Those of a shared lock are all Shared.
type Hold struct {
	Party  Party
	Shared bool
	For    time.Duration
}

// Call is a waiting call.
type Call struct {
	Party  Party
	Shared bool
	Limit  int // 0: none
	For    time.Duration
}

// Step is one session of a circle, and what it waits for.
type Step struct {
	Key  string
	Call Call
	// Holder is the next session of the circle, and the first one after the last. Others is how many more hold the key.
	Holder Hold
	Others int
	// Ahead is an exclusive call that is first in the queue. It is nil if the Call itself does not fit beside the holders.
	Ahead *Call
}

// Search returns circles. Of those that have a session in common, it returns one.
func Search(keys []Key) [][]Step {
	stuck := play(keys)
	first, order := stuck.firstSteps()
	var circles [][]Step
	walks := map[Party]int{} // which walk has met a session
	for i, start := range order {
		walk := i + 1
		var way []Step
		at := start
		for walks[at] == 0 {
			walks[at] = walk
			way = append(way, first[at])
			at = first[at].Holder.Party
		}
		if walks[at] == walk {
			for way[0].Call.Party != at {
				way = way[1:]
			}
			circles = append(circles, way)
		}
	}
	return circles
}

// board is the state of the keys.
type board struct {
	keys  []Key
	waits map[Party]int   // with how many calls
	holds map[Party][]int // indexes of keys
	free  []Party         // those that release next
}

// play returns what is left when nobody can go on.
func play(keys []Key) *board {
	b := &board{keys: make([]Key, len(keys)), waits: map[Party]int{}, holds: map[Party][]int{}}
	for n, k := range keys {
		b.keys[n] = Key{Name: k.Name}
		for _, h := range k.Holds {
			b.keys[n].Holds = append(b.keys[n].Holds, h)
			b.holds[h.Party] = append(b.holds[h.Party], n)
		}
		for _, c := range k.Calls {
			if holds(k.Holds, c.Party) {
				c.Party = Party{} // another thread of the holder's session
			}
			b.keys[n].Calls = append(b.keys[n].Calls, c)
			b.waits[c.Party]++
		}
	}
	delete(b.waits, Party{})
	for p := range b.holds {
		if b.waits[p] == 0 {
			b.free = append(b.free, p)
		}
	}
	for n := range b.keys {
		b.grant(n)
	}
	for len(b.free) > 0 {
		p := b.free[len(b.free)-1]
		b.free = b.free[:len(b.free)-1]
		for _, n := range b.holds[p] {
			b.release(n, p)
			b.grant(n)
		}
	}
	return b
}

// holds says whether a session that names no owner holds a key: then its threads cannot be told from each other, and one of
// them often waits for another.
func holds(all []Hold, p Party) bool {
	for _, h := range all {
		if h.Party == p && p.Owner == "" {
			return true
		}
	}
	return false
}

func (b *board) release(n int, p Party) {
	left := b.keys[n].Holds[:0]
	for _, h := range b.keys[n].Holds {
		if h.Party != p {
			left = append(left, h)
		}
	}
	b.keys[n].Holds = left
}

// grant grants the calls that fit. Each is over at once: the thread that made it can go on.
func (b *board) grant(n int) {
	k := &b.keys[n]
	for len(k.Calls) > 0 && fits(k.Holds, &k.Calls[0]) {
		p := k.Calls[0].Party
		k.Calls = k.Calls[1:]
		if p == (Party{}) {
			continue
		}
		if b.waits[p]--; b.waits[p] == 0 {
			b.free = append(b.free, p)
		}
	}
}

// fits says whether a call can hold a key beside its holders.
func fits(holds []Hold, c *Call) bool {
	return len(holds) == 0 || c.Shared && holds[0].Shared && (c.Limit == 0 || len(holds) < c.Limit)
}

// firstSteps returns for each stuck session what the first of its calls waits for, and the sessions in the order of these calls. A
// key for which calls are left has a holder, and all of its holders are stuck.
func (b *board) firstSteps() (steps map[Party]Step, order []Party) {
	steps = map[Party]Step{}
	for _, k := range b.keys {
		for _, c := range k.Calls {
			if _, known := steps[c.Party]; known || c.Party == (Party{}) {
				continue
			}
			s := Step{Key: k.Name, Call: c, Holder: k.Holds[0], Others: len(k.Holds) - 1}
			if fits(k.Holds, &c) {
				s.Ahead = &k.Calls[0]
			}
			steps[c.Party] = s
			order = append(order, c.Party)
		}
	}
	return steps, order
}
