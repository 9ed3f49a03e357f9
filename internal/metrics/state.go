package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/store"
)

// State contains the values of gauges about locks. Each read of the metrics computes it, in up to some
// milliseconds.
type State struct {
	Sessions int
	Leases   int
	// LeaseExpiry is how long the lease that ends first is still trusted; zero for none.
	LeaseExpiry time.Duration
	// LeaseLeft is the smallest remaining time of a lease, as a share of its TTL.
	LeaseLeft float64
	// Held is the number of locks that sessions hold, by the type of their keys ([store.TypeOf]).
	Held map[string]HeldLocks
	// Kept is the number of keys that this sidecar keeps, and that no session has.
	Kept int
	// OldestHold is the age of the oldest lock of a session.
	OldestHold time.Duration
	// Ready: locks can be granted.
	Ready, Draining bool
}

// HeldLocks counts locks, by their mode.
type HeldLocks struct{ Exclusive, Shared int64 }

// StoreState contains the values of gauges about the store.
type StoreState struct {
	// Connections of the pools: in use, idle, and the limit.
	Used, Idle, Max int
	// Waited counts statements that waited for a connection. WaitedFor is their total waiting time.
	Waited    int64
	WaitedFor time.Duration
	// Listener is off, connecting, listening or polling.
	Listener string
	// Quiet is the rest of a quiet time, in which nothing is granted after a failover; zero: there is none.
	Quiet time.Duration
}

// values receives metrics. Other parts compute the value of such a metric when somebody reads it.
type values chan<- prometheus.Metric

// gauge adds a gauge. labels are alternating names and values.
func (to values) gauge(name, help string, value float64, labels ...string) {
	to.add(prometheus.GaugeValue, name, help, value, labels)
}

func (to values) counter(name, help string, value float64) {
	to.add(prometheus.CounterValue, name, help, value, nil)
}

// add adds a value. If a label is not valid UTF-8, only this metric fails.
func (to values) add(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, are []string
	for pair := range slices.Chunk(labels, 2) {
		names, are = append(names, pair[0]), append(are, pair[1])
	}
	desc := prometheus.NewDesc(prefix+name, help, names, nil)
	m, err := prometheus.NewConstMetric(desc, kind, value, are...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	to <- m
}

func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// Describe implements [prometheus.Collector]. It describes nothing, because the metrics depend on other parts.
func (*Set) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	to := values(ch)
	if dropped := s.linesDropped.Load(); dropped != nil {
		to.counter("log_lines_dropped_total", "Log lines that were not written, because there were too many of one kind, or because the log's reader was too slow.", float64((*dropped)()))
	}
	if open := s.Calls.connections.Load(); open != nil {
		to.gauge("connections", "Connections of apps that are open.", float64((*open)()))
	}
	if state := s.Store.state.Load(); state != nil {
		(*state)().collect(to)
	}
	if state := s.Locks.state.Load(); state != nil {
		(*state)().collect(to, s.Locks)
	}
	if fleet := s.Locks.fleet.Load(); fleet != nil {
		f, leads := (*fleet)()
		to.gauge("fleet_leader", "1 when this sidecar shows the metrics of the whole database.", number(leads))
		if leads {
			collectFleet(to, f)
		}
	}
}

func (s StoreState) collect(to values) {
	to.gauge("store_quiet_seconds", "Remaining time in which nothing is granted after a failover that may have forgotten grants; 0 otherwise.", s.Quiet.Seconds())
	to.counter("pool_waits_total", "How often a statement waited for a connection to the database.", float64(s.Waited))
	to.counter("pool_wait_seconds_total", "How long statements waited for a connection to the database, in all.", s.WaitedFor.Seconds())
	for n, connections := range []int{s.Used, s.Idle, s.Max} {
		to.gauge("pool_connections", "Connections to the database, by state; max is the limit.", float64(connections), "state", connectionStates[n])
	}
	for _, one := range listenerStates {
		to.gauge("listener", "1 for the present state of the connection that listens for news of other instances.", number(s.Listener == one), "state", one)
	}
}

func (s State) collect(to values, l *Locks) {
	held := map[*typed]HeldLocks{}
	for name, n := range s.Held {
		t := l.types.of(label(name))
		held[t] = HeldLocks{held[t].Exclusive + n.Exclusive, held[t].Shared + n.Shared}
	}
	for name, t := range l.types.all() {
		const help = "Locks that sessions of this sidecar hold, by the type of the key and the mode. Each shared holder counts; missing while there is none."
		to.gauge("locks_held", help, float64(held[t].Exclusive), "type", name, "mode", "exclusive")
		if held[t].Shared > 0 {
			to.gauge("locks_held", help, float64(held[t].Shared), "type", name, "mode", "shared")
		}
	}
	to.gauge("kept_keys", "Keys that this sidecar keeps for its next session: no session has them.", float64(s.Kept))
	to.gauge("sessions", "Sessions that are open.", float64(s.Sessions))
	to.gauge("leases", "Leases of this sidecar.", float64(s.Leases))
	if s.Leases > 0 {
		to.gauge("lease_expiry_seconds", "How long the lease that ends first is still trusted; missing when there is none.", s.LeaseExpiry.Seconds())
		to.gauge("lease_left_ratio", "Time left of a lease, as a share of its TTL; the smallest of all leases; missing when there is none.", s.LeaseLeft)
	}
	to.gauge("oldest_hold_seconds", "Age of the oldest lock that a session of this sidecar holds.", s.OldestHold.Seconds())
	to.gauge("store_ready", "1 when locks can be granted.", number(s.Ready))
	to.gauge("draining", "1 when the sidecar stops.", number(s.Draining))
}

// fleetLines is how many types, and pods, of the whole database have metrics of their own. The others share a line.
const fleetLines = 20

// collectFleet shows what the whole database holds.
func collectFleet(to values, counted store.Stats) {
	types := slices.Clone(counted.Types)
	for i := range types {
		t := &types[i]
		if t.Name = label(t.Name); t.Name == store.Others {
			t.Namespace = ""
		}
	}
	for _, line := range store.Top(types, fleetLines) {
		of := []string{"lock_namespace", line.Namespace, "type", line.Name}
		to.gauge("fleet_locks", "Locks held in the whole database, by namespace and type.", float64(line.Held), of...)
		to.gauge("fleet_expired", "Locks of dead holders in the whole database that were not requested since.", float64(line.Expired), of...)
		to.gauge("fleet_waiters", "Waiters in the whole database, by namespace and type.", float64(line.Waiting), of...)
		to.gauge("fleet_hold_average_seconds", "Average age of the held locks in the whole database.", line.Average.Seconds(), of...)
		to.gauge("fleet_hold_longest_seconds", "Age of the oldest held lock in the whole database.", line.Longest.Seconds(), of...)
	}
	for _, line := range store.Top(counted.Pods, fleetLines) {
		to.gauge("fleet_pod_locks", "Locks held in the whole database, by namespace and pod.", float64(line.Held), "lock_namespace", line.Namespace, "lock_pod", line.Name)
	}
}
