package storetest

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// lasts compares a remaining time with an end.
func (m *machine) lasts(left time.Duration, until time.Time) bool {
	want := until.Sub(m.model.clock)
	if m.exact() {
		return left == want
	}
	return left > want-m.tick && left <= want // a real clock advances
}

// signal stops or breaks a holder.
func (m *machine) signal(t *rapid.T) {
	k := m.model.lock(m.key(t))
	g := store.Signal{Key: k.key, Kind: store.SignalKind(rapid.IntRange(1, 2).Draw(t, "kind"))}
	switch rapid.IntRange(0, 4).Draw(t, "token") {
	case 0:
		g.Token = k.someHold(t).token
	case 1:
		g.Token = k.token + 1
	}
	if reason := rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "reason"); reason != "" {
		g.Reason = &reason
	}
	want := m.model.signal(g)
	got, err := m.any(t).Signal(m.ctx, []store.Signal{g})
	must(t, err)
	if !slices.Equal(got, []store.ClaimStatus{want}) {
		t.Fatalf("got %+v: %v, want %s", g, got, standing(want))
	}
}

// hearSignals acknowledges the signals of a holder.
func (m *machine) hearSignals(t *rapid.T) {
	k := m.model.lock(m.key(t))
	h := k.someHold(t)
	l := h.lease
	if l == nil || !l.renewed || !m.model.alive(l) {
		t.Skip("no signals to acknowledge")
	}
	by := m.owner[h.holder.Lease]
	var ids []store.SignalID
	for _, g := range m.signals(t, k, h) {
		ids = append(ids, g.ID)
	}
	must(t, m.stores[by].Acknowledge(m.ctx, ids))
	maps.DeleteFunc(l.signals, func(g modelSignal, _ *string) bool { return g.key == k.key && g.token == h.token })
}

// signals returns the current signals to a holder of a key.
func (m *machine) signals(t *rapid.T, k *modelLock, h *modelHold) []store.Signal {
	all, err := m.stores[m.owner[h.holder.Lease]].Signals(m.ctx, []store.LeaseID{h.holder.Lease})
	must(t, err)
	return slices.DeleteFunc(all, func(g store.Signal) bool { return g.Key != k.key || g.Token != h.token })
}

// compareSignals compares the signals to a holder of a key.
func (m *machine) compareSignals(t *rapid.T, k *modelLock, h *modelHold, got *store.Stopping) {
	if (got != nil) != (h.stopping != nil) || h.stopping != nil && !sameReason(got.Reason, h.stopping.reason) {
		t.Fatalf("%+v\nwant stopping %+v", got, h.stopping)
	}
	if !h.lease.renewed || !m.model.alive(h.lease) {
		return
	}
	found := map[modelSignal]*string{}
	for _, g := range m.signals(t, k, h) {
		found[modelSignal{g.Key, g.Token, g.Kind}] = g.Reason
	}
	want := maps.Clone(h.lease.signals)
	maps.DeleteFunc(want, func(g modelSignal, _ *string) bool { return g.key != k.key || g.token != h.token })
	if !maps.EqualFunc(found, want, sameReason) {
		t.Fatalf("signals to the holder of %q: %v, want %v", k.key, found, want)
	}
}

func (m *machine) watch(t *rapid.T) {
	id, key := m.lease(t), m.key(t)
	by := m.owner[id]
	if !m.model.alive(m.model.leases[id]) {
		if err := m.stores[by].Watch(m.ctx, []string{key}, id); !store.Unavailable(err) || store.OutcomeUnknown(err) {
			t.Fatalf("watches under a dead lease: %v", err)
		}
		return
	}
	k := m.model.lock(key)
	if !m.exact() && slices.ContainsFunc(k.holds(), func(h *modelHold) bool { return h.stopping != nil }) {
		t.Skip("the stop may still be in flight, and would be repeated")
	}
	k.since[by] = k.past()
	must(t, m.stores[by].Watch(m.ctx, []string{key}, id))
	m.model.recall(k, by)
	k.watchers[by] = id
	delete(m.model.lapsed, modelWatch{by, key})
}

func (m *machine) unwatch(t *rapid.T) {
	by := m.anyOf(t)
	key := m.key(t)
	must(t, m.stores[by].Unwatch(m.ctx, []string{key}))
	delete(m.model.lock(key).watchers, by)
	delete(m.model.lapsed, modelWatch{by, key})
}
