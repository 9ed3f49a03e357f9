package storetest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// modelKeep is what the answer to an ask says of keeping the key.
type modelKeep struct {
	want bool
	// unsure: a store that is not exact may have forgotten the last grant in a sweep, and may remember a watch for longer than its lease
	// lives.
	unsure bool
	// fresh is the grant, if the ask made it.
	fresh *modelHold
}

// comesAgain reports whether the grant to an asker is keepable. The key is free, and nobody waits in the queue.
func (m *model) comesAgain(k *modelLock, a modelAsker) bool {
	plain := !a.Shared && a.TTL == 0 && a.MinHold == 0 && !a.Skip
	return plain && a.Last != 0 && a.Last == k.token && k.released && !m.wanted(k)
}

// wanted reports whether a living waiter or watcher wants the key.
func (m *model) wanted(k *modelLock) bool {
	for _, id := range k.watchers {
		if m.alive(m.leases[id]) {
			return true
		}
	}
	return len(m.firstAlive(k)) > 0
}

// isKept reports whether the instance of the holder may keep the key.
func (m *model) isKept(k *modelLock) bool {
	return len(k.shares) == 0 && k.keepable && m.alive(k.lease)
}

// recall notes that the holder's instance must hear of a new waiter, or of a watcher, of another one.
func (m *model) recall(k *modelLock, by int) {
	if m.isKept(k) && k.holder.by != by {
		m.recalled = append(m.recalled, modelWatch{k.holder.by, k.key})
	}
}

func (m *model) awaitedElsewhere(k *modelLock) bool {
	return slices.ContainsFunc(k.line, func(w modelAsker) bool { return w.by != k.holder.by && m.alive(m.leases[w.Lease]) })
}

// unkeep ends that a grant is keepable. The first waiter learns of it.
func (m *model) unkeep(k *modelLock, h *modelHold) {
	if h.keepable {
		h.keepable = false
		m.hinted = append(m.hinted, m.firstAlive(k)...)
	}
}

// judgeKeepable compares whether a grant is keepable.
func (m *machine) judgeKeepable(t *rapid.T, k *modelLock, got store.Answer) {
	want := m.model.keep
	if got.Keepable && !want.want || !got.Keepable && want.want && (m.exact() || !want.unsure) {
		t.Fatalf("%+v: want keepable %v", got, want.want)
	}
	if want.fresh != nil {
		if want.fresh.keepable = got.Keepable; got.Keepable {
			k.last = max(k.last, got.Token+store.TokensPerGrant-1)
		}
	}
}

// hearRecalls waits for the expected recalls. A store that is not exact may repeat one.
func (m *machine) hearRecalls(t *rapid.T) {
	for by := range m.ears {
		ear := &m.ears[by]
		var wanted []string
		for _, w := range m.model.recalled {
			if w.by == by && !m.deaf() {
				wanted = append(wanted, w.key)
			}
		}
		has := func() bool {
			ear.mu.Lock()
			defer ear.mu.Unlock()
			return !slices.ContainsFunc(wanted, func(key string) bool { return !slices.Contains(ear.recalls, key) })
		}
		m.until(t, "a recall", has)
		ear.mu.Lock()
		if m.exact() && len(ear.recalls) != len(wanted) {
			t.Fatalf("instance %d was told to give up %v, want %v", by, ear.recalls, wanted)
		}
		ear.recalls = nil
		ear.mu.Unlock()
	}
	m.model.recalled = nil
}
