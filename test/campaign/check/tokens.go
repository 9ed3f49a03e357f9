package check

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// tokens: a grant that was asked for after another one was answered has a larger token,
// and no two have the same.
func tokens(h *arranged) (broken []Violation) {
	for _, k := range slices.Concat(h.keys, h.shared) {
		for i := 1; i < len(k.terms); i++ {
			if k.terms[i-1].grant.Token == k.terms[i].grant.Token {
				broken = append(broken, Violation{
					Rule: "tokens", Key: k.key, Text: "granted twice under one token",
					Ops: []history.Op{k.terms[i-1].grant, k.terms[i].grant},
				})
			}
		}
		answers, calls := slices.Clone(k.terms), slices.Clone(k.terms)
		slices.SortFunc(answers, func(a, b *term) int { return cmp.Compare(a.grant.Return, b.grant.Return) })
		slices.SortFunc(calls, func(a, b *term) int { return cmp.Compare(a.grant.Call, b.grant.Call) })
		var largest *term // of those that were answered
		for _, t := range calls {
			for len(answers) > 0 && answers[0].grant.Return < t.grant.Call {
				if largest == nil || answers[0].grant.Token > largest.grant.Token {
					largest = answers[0]
				}
				answers = answers[1:]
			}
			if largest != nil && t.grant.Token <= largest.grant.Token {
				broken = append(broken, Violation{
					Rule: "tokens", Key: k.key, Text: "a later grant has a smaller token",
					Ops: []history.Op{largest.grant, t.grant},
				})
			}
		}
	}
	return broken
}
