package check

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// A sidecar may keep a key that was released there ([history.Keeps]): its own clients take it without the store, and the store
// shows everybody else that it is held. So the model does not judge who was refused elsewhere just after such a release.
// What it does judge is a refusal by the sidecar that keeps the key, and one that comes after the key must have been given up.

// keeping is a time in which a sidecar may keep a key, though its client has released it.
type keeping struct {
	span
	sidecar int
	// known: the sidecar knows that it keeps the key, because nothing has struck it since.
	known bool
}

// takes finds who may have got the key from its sidecar, which kept it, and when it may have been kept.
func (k *keyHistory) takes(h *arranged) {
	for i, t := range k.terms {
		if i == 0 || h.keeps[t.grant.Sidecar] == 0 {
			continue
		}
		before := k.terms[i-1]
		t.take = before.freed != nil && t.grant.Token == before.grant.Token+1 && t.grant.Sidecar == before.grant.Sidecar && t.grant.Call > before.freed.Call
		// The store lets a sidecar keep a key only if nobody else had it since the sidecar released it last.
		again := before.grant.Sidecar == t.grant.Sidecar || meetsAny(k.ghosts, before.end, t.grant.Return, t.grant.ID)
		if t.freeing == nil || t.grant.Session == "" || t.grant.Shared || t.downgrade != nil || !again {
			continue
		}
		most := h.keeps[t.grant.Sidecar] + calmly
		kept := keeping{span{t.freeing.Call, plus(t.freeing.Return, most)}, t.grant.Sidecar, true}
		switch {
		case t.freeing.Outcome == history.Unknown:
			kept.to, kept.known = plus(h.effect(*t.freeing).to, h.keeps[t.grant.Sidecar]), false
		case !h.calm(kept.from, kept.to): // it may have died with the key, which its lease frees
			kept.to, kept.known = plus(t.freeing.Return, max(h.rules.Recovery, most)), false
		}
		k.kept = append(k.kept, kept)
	}
}

// keptFrom reports whether a sidecar may have kept the key from the client of that one.
func (k *keyHistory) keptFrom(sidecar int, from, to int64) bool {
	for _, kept := range k.kept {
		if kept.meets(from, to) && (!kept.known || kept.sidecar != sidecar) {
			return true
		}
	}
	return false
}

func meetsAny(ghosts []ghost, from, to int64, but string) bool {
	for _, g := range ghosts {
		if g.meets(from, to) && g.op != but {
			return true
		}
	}
	return false
}

// kept judges what sidecars do with the keys that they keep.
//
//   - The store reserves so many tokens for a grant, all for its sidecar. It chooses none of these again.
//   - Nobody is given a key without the store when [Rules.KeptFor] is over since the store's grant. Nobody has confirmed since
//     then that the lease holds it.
//   - Without a fault, a key is not kept for much longer than its sidecar may keep it without use.
//   - Without a fault, who waits elsewhere has a kept key within [Rules.Handoff]: its sidecar hears of the waiter, and gives the key up.
func kept(h *arranged) (broken []Violation) {
	if len(h.keeps) == 0 {
		return nil
	}
	for _, k := range h.keys {
		first := 0 // of the grants under consecutive tokens: the store's own
		find := func(t *term, text string, also ...history.Op) {
			broken = append(broken, Violation{Rule: "kept", Key: k.key, Text: text, Ops: append(also, t.grant)})
		}
		for i := 1; i < len(k.terms); i++ {
			before, t := k.terms[i-1], k.terms[i]
			if t.grant.Token != before.grant.Token+1 {
				first = i
				if text := h.recalled(k, before, t); text != "" {
					find(t, text, *before.freed)
				}
				continue
			}
			grant := k.terms[first].grant
			switch {
			case t.grant.Sidecar != before.grant.Sidecar:
				find(t, "granted under a token that was another sidecar's to give", before.grant)
			case i-first >= store.TokensPerGrant:
				find(t, fmt.Sprintf("granted under the token after the %d that the store has reserved", store.TokensPerGrant), grant)
			}
			if !t.take || t.grant.Call <= before.freed.Return {
				continue // it may have been handed on
			}
			h.counts.Kept++
			idle, most := time.Duration(t.grant.Call-before.freed.Return), h.keeps[t.grant.Sidecar]+calmly+turns*h.slowest(before.freed.Call, t.grant.Return)
			switch {
			case time.Duration(t.grant.Call-grant.Return) > h.rules.KeptFor:
				find(t, fmt.Sprintf("its sidecar gave it the key %s after the store's grant, more than %s", time.Duration(t.grant.Call-grant.Return), h.rules.KeptFor), grant)
			case idle > most && h.calm(before.freed.Call, t.grant.Return):
				find(t, fmt.Sprintf("the key was kept for %s without use, more than %s", idle, most), *before.freed)
			}
		}
	}
	return broken
}

// recalled judges how long a call waited for a key that another sidecar may have kept, and had released before.
func (h *arranged) recalled(k *keyHistory, before, t *term) string {
	w := t.grant
	if before.freed == nil || h.keeps[before.grant.Sidecar] == 0 || w.Sidecar == before.grant.Sidecar || w.Wait == 0 || w.Group != "" || w.Repeats > 0 {
		return ""
	}
	from := before.freed.Return
	if w.Call <= from || !h.calm(before.freed.Call, w.Return) || meetsAny(k.ghosts, from, w.Return, w.ID) || meets(k.groups, from, w.Return) || meets(k.forced, from, w.Return) {
		return ""
	}
	if before.take {
		h.counts.Recalled++
	}
	if took := time.Duration(w.Return - w.Call); took > h.rules.Handoff+turns*h.slowest(w.Call, w.Return) {
		return fmt.Sprintf("it waited for %s for a key that nobody used, more than %s", took, h.rules.Handoff)
	}
	return ""
}
