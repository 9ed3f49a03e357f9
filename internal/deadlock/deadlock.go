// Package deadlock finds sessions that wait for each other, so that all of them are blocked.
//
// The search simulates the future. A session that does not wait releases its locks, which are handed on by the
// rules of the queue. When all calls of a session have been granted, this session releases its locks, too.
// Sessions that still wait at the end are stuck. Each of them waits for a stuck holder, so every path along
// them leads into a circle.
package deadlock

import "time"

// Party is a session, or an owner within a session. The zero Party is a call or a lock without a session. Its
// app is unknown, so the search assumes that it can continue.
type Party struct {
	Pod, Session, Owner string
}

// Key is a key with waiting calls.
type Key struct {
	Name  string
	Holds []Hold
	Calls []Call // in their order
}

// Hold is a grant. The grants of a shared lock are all Shared.
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
	// Holder is the next session of the circle, for the last the first one. Others is the number of further holders.
	Holder Hold
	Others int
	// Ahead is the exclusive call at the head of the queue. It is nil if the Call itself does not fit beside the
	// holders.
	Ahead *Call
}

// Search returns circles. Of several circles with a common session, it returns one.
func Search(keys []Key) [][]Step {
	stuck := play(keys)
	first, order := stuck.firstSteps()
	var circles [][]Step
	walks := map[Party]int{} // the walk in which a session was found
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
	free  []Party         // sessions that release next
}

// play returns the state in which every remaining session is blocked.
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

// holds reports whether a session without an owner holds a key. Its threads cannot be distinguished, and one
// often waits for another.
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

// grant grants the calls that fit. Each counts as finished at once, because its thread can continue.
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

// fits reports whether a call can hold a key beside its holders.
func fits(holds []Hold, c *Call) bool {
	return len(holds) == 0 || c.Shared && holds[0].Shared && (c.Limit == 0 || len(holds) < c.Limit)
}

// firstSteps returns, for each stuck session, what its first call waits for, and the sessions in the order of
// these calls. A key with remaining calls has a holder, and all of its holders are stuck.
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
