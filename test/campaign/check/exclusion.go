package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// exclusion: from the answer that granted a key until its client released it, or until
// the moment up to which it may believe the last answer, nobody else has the same.
func exclusion(h *arranged) (broken []Violation) {
	for _, k := range h.keys {
		believing := slices.Clone(k.terms)
		slices.SortFunc(believing, func(a, b *term) int { return cmp.Compare(a.grant.Return, b.grant.Return) })
		var last *term // of those before, the one who believes longest
		for _, t := range believing {
			if t.belief <= t.grant.Return {
				continue // it was over before anybody knew
			}
			if last != nil && t.grant.Return < last.belief {
				both := min(t.belief, last.belief) - t.grant.Return
				broken = append(broken, Violation{
					Rule: "exclusion", Key: k.key, Ops: []history.Op{last.grant, t.grant},
					Text: fmt.Sprintf("two hold it at a time, for %s", time.Duration(both)),
				})
			}
			if last == nil || t.belief > last.belief {
				last = t
			}
		}
	}
	return broken
}
