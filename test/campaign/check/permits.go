package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Of a shared key it is known when clients believe that they hold it, as in the rule of exclusion: from the answer
// that granted it until they released it, or until the moment up to which they may believe the last answer. A lock that
// was downgraded is exclusive until the client asked for that, and shared from then on.

// stay is the time in which a client believes that it has a permit of a shared key, or all of it.
type stay struct {
	grant     history.Op
	from, to  int64
	exclusive bool
	// limit is what it named, or was told; slot is as in [history.Op]. Unknown: nobody was told.
	limit, slot int
	unknown     bool
}

// stays are all of a key, in the order of their beginnings.
func (k *keyHistory) stays() (all []stay) {
	add := func(s stay) {
		if s.from < s.to {
			all = append(all, s)
		}
	}
	for _, t := range k.terms {
		s := stay{grant: t.grant, from: t.grant.Return, to: t.belief, limit: t.grant.Limit, slot: t.grant.Slot}
		if t.grant.Shared {
			add(s)
			continue
		}
		s.exclusive = true
		if t.downgrade == nil {
			add(s)
			continue
		}
		rest := stay{grant: t.grant, from: max(s.from, t.downgrade.Call), to: s.to, unknown: true}
		s.to = min(s.to, t.downgrade.Call)
		add(s)
		if told := t.downgrade.Return; t.downgrade.Outcome == history.Held {
			add(stay{grant: t.grant, from: max(rest.from, told), to: rest.to, limit: t.downgrade.Limit, slot: t.downgrade.Slot})
			rest.to = min(rest.to, told)
		}
		add(rest)
	}
	slices.SortStableFunc(all, func(a, b stay) int { return cmp.Compare(a.from, b.from) })
	return all
}

// permits: a key has one exclusive holder, or shared ones who name the same limit; never more than that limit, and
// each has a slot of its own below it.
func permits(h *arranged) (broken []Violation) {
	for _, k := range h.shared {
		find := func(text string, ops ...history.Op) {
			broken = append(broken, Violation{Rule: "permits", Key: k.key, Text: text, Ops: ops})
		}
		var here []stay
		for _, s := range k.stays() {
			here = slices.DeleteFunc(here, func(other stay) bool { return other.to <= s.from })
			h.meet(s, here, find)
			here = append(here, s)
			limit := 0
			for _, other := range here {
				limit = max(limit, other.limit)
			}
			if limit > 0 && len(here) >= limit {
				h.counts.Full++
			}
			if limit > 0 && len(here) > limit {
				var ops []history.Op
				for _, other := range here {
					ops = append(ops, other.grant)
				}
				find(fmt.Sprintf("%d hold it at a time, and %d may", len(here), limit), ops...)
			}
		}
	}
	return broken
}

// meet judges a new holder beside the present ones.
func (h *arranged) meet(s stay, here []stay, find func(text string, ops ...history.Op)) {
	switch {
	case s.exclusive || s.unknown:
	case s.limit == 0 && s.slot != 0, s.limit > 0 && (s.slot < 1 || s.slot > s.limit):
		find(fmt.Sprintf("slot %d of %d", s.slot-1, s.limit), s.grant)
	}
	for _, other := range here {
		both := time.Duration(min(s.to, other.to) - s.from)
		switch {
		case other.exclusive || s.exclusive:
			find(fmt.Sprintf("one holds it exclusively beside another one, for %s", both), other.grant, s.grant)
		case other.unknown || s.unknown:
		case other.limit != s.limit:
			find(fmt.Sprintf("they hold it under the limits %d and %d, for %s", other.limit, s.limit, both), other.grant, s.grant)
		case s.slot != 0 && other.slot == s.slot:
			find(fmt.Sprintf("two have slot %d at a time, for %s", s.slot-1, both), other.grant, s.grant)
		}
	}
}
