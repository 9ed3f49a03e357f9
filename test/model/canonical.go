package model

import (
	"hash/maphash"
	"math/bits"
)

// settle leaves out of a state what makes no difference to what can happen.
func (s *State) settle(b *Bounds) {
	for _, d := range []*database{&s.db, &s.standby} {
		if d.holder == 0 {
			d.grant = 0
		}
	}
	if s.db.holder == 0 || s.db.exists(s.db.holder) {
		s.excused = false
	}
	for i := range b.Sidecars {
		if l := &s.sc[i].leases; l[1].state == trusted || l[0].state == unused && l[1].state == lost {
			*s = s.renamed(&permutations[1][0], i)
		}
	}
	s.rank(b)
}

// rank makes ranks of tokens.
func (s *State) rank(b *Bounds) {
	var used uint64
	s.tokens(b, func(t *uint8) { used |= 1 << *t })
	used &^= 1 // no token
	s.tokens(b, func(t *uint8) {
		if *t > 0 {
			*t = uint8(bits.OnesCount64(used & (1<<(*t+1) - 1)))
		}
	})
}

func (s *State) tokens(b *Bounds, each func(*uint8)) {
	for _, d := range []*database{&s.db, &s.standby} {
		each(&d.token)
		each(&d.first)
	}
	each(&s.top)
	for i := range b.Sidecars {
		each(&s.sc[i].token)
		for l := range s.sc[i].ops {
			each(&s.sc[i].ops[l].token)
		}
	}
}

// permutations of sidecars, by their number: it makes no difference which is which.
var permutations = map[int][][most]int{
	1: {{0, 1, 2}},
	2: {{0, 1, 2}, {1, 0, 2}},
	3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
}

// key is the same for states that differ only in which sidecar is which. Two others
// have the same key with a probability of 2^-64; a search of millions of states can
// do with that.
func (s *State) key(b *Bounds, seed maphash.Seed) uint64 {
	smallest := maphash.Comparable(seed, *s)
	for _, to := range permutations[b.Sidecars][1:] {
		p := s.renamed(&to, -1)
		smallest = min(smallest, maphash.Comparable(seed, p))
	}
	return smallest
}

// renamed is the state in which sidecar i is called to[i], and the leases of one of them
// (-1: none) have each other's slots.
func (s *State) renamed(to *[most]int, swapped int) State {
	var names [gone + 1]leaseID
	for i := range most {
		for slot := range slots {
			as := slot
			if i == swapped {
				as = slots - 1 - slot
			}
			names[idOf(i, slot)] = idOf(to[i], as)
		}
	}
	names[gone] = gone
	grants := [former + 1]attemptID{1: attemptID(1 + to[0]), 2: attemptID(1 + to[1]), 3: attemptID(1 + to[2]), former: former}

	n := *s
	n.db, n.standby = s.db.renamed(&names, &grants), s.standby.renamed(&names, &grants)
	for i := range s.sc {
		c := s.sc[i]
		c.heldUnder = names[c.heldUnder]
		for l := range c.ops {
			o := &c.ops[l]
			o.lease, o.from, o.dead, o.next = names[o.lease], names[o.from], names[o.dead], grants[o.next]
		}
		if i == swapped {
			c.leases[0], c.leases[1] = c.leases[1], c.leases[0]
		}
		n.sc[to[i]] = c
	}
	return n
}

func (d *database) renamed(leases *[gone + 1]leaseID, grants *[former + 1]attemptID) database {
	n := *d
	n.holder, n.grant = leases[d.holder], grants[d.grant]
	for l := range d.leases {
		n.leases[leases[l]] = d.leases[l]
	}
	for i, w := range d.queue {
		n.queue[i] = waiter{grants[w.grant], leases[w.lease]}
	}
	return n
}
