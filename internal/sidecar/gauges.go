package sidecar

import (
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
)

// gauges adds up the gauges of the pods of a node.
type gauges struct {
	mu     sync.Mutex
	states map[hostfolder.Key]func() metrics.State
	fleets map[hostfolder.Key]func() (store.Stats, bool)
}

func newGauges() *gauges {
	return &gauges{states: map[hostfolder.Key]func() metrics.State{}, fleets: map[hostfolder.Key]func() (store.Stats, bool){}}
}

// podMetrics counts the events of a pod together with those of the others.
type podMetrics struct {
	*metrics.Locks

	key hostfolder.Key
	all *gauges
}

func (g *gauges) of(k hostfolder.Key, shared *metrics.Locks) *podMetrics {
	return &podMetrics{shared, k, g}
}

// Observe adds the gauges of the pod.
func (m *podMetrics) Observe(state func() metrics.State) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.all.states[m.key] = state
}

// ObserveFleet adds the pod's way to count the whole database.
func (m *podMetrics) ObserveFleet(fleet func() (store.Stats, bool)) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	m.all.fleets[m.key] = fleet
}

func (g *gauges) forget(k hostfolder.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.states, k)
	delete(g.fleets, k)
}

// state adds up the pods' states.
func (g *gauges) state() metrics.State {
	g.mu.Lock()
	var states []func() metrics.State
	for _, k := range keysOf(g.states) {
		states = append(states, g.states[k])
	}
	g.mu.Unlock()
	sum := metrics.State{Ready: true, Held: map[string]metrics.HeldLocks{}}
	for _, state := range states {
		s := state()
		if s.Leases > 0 && (sum.Leases == 0 || s.LeaseExpiry < sum.LeaseExpiry) {
			sum.LeaseExpiry = s.LeaseExpiry
		}
		if s.Leases > 0 && (sum.Leases == 0 || s.LeaseLeft < sum.LeaseLeft) {
			sum.LeaseLeft = s.LeaseLeft
		}
		sum.Sessions += s.Sessions
		sum.Leases += s.Leases
		sum.Kept += s.Kept
		sum.OldestHold = max(sum.OldestHold, s.OldestHold)
		sum.Ready, sum.Draining = sum.Ready && s.Ready, sum.Draining || s.Draining
		for name, held := range s.Held {
			was := sum.Held[name]
			sum.Held[name] = metrics.HeldLocks{Exclusive: was.Exclusive + held.Exclusive, Shared: was.Shared + held.Shared}
		}
	}
	return sum
}

// fleet counts the whole database through one of the pods, because each that asks stands for election.
func (g *gauges) fleet() (store.Stats, bool) {
	g.mu.Lock()
	var first func() (store.Stats, bool)
	if keys := keysOf(g.fleets); len(keys) > 0 {
		first = g.fleets[slices.Min(keys)]
	}
	g.mu.Unlock()
	if first == nil {
		return store.Stats{}, false
	}
	return first()
}
