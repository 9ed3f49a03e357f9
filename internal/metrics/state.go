package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// State is the state of the locks, for gauges. Each read builds it, in up to some milliseconds.
type State struct {
	Sessions int
	Leases   int
	// LeaseExpiry is how long the lease that ends first is still trusted; zero for none.
	LeaseExpiry time.Duration
	// LeaseLeft is the least time left of a lease, as a share of its TTL.
	LeaseLeft float64
	// Held is how many locks sessions hold, by the type of their keys ([store.TypeOf]).
	Held map[string]int64
	// OldestHold is the age of the oldest lock of a session.
	OldestHold time.Duration
	// Ready: locks can be granted.
	Ready, Draining bool
}

// StoreState is the present state of the store, for gauges.
type StoreState struct {
	// Connections of the pools: in use, idle, and the limit.
	Used, Idle, Max int
	// Waited counts statements that waited for a connection; WaitedFor is their time in all.
	Waited    int64
	WaitedFor time.Duration
	// Listener is off, connecting, or listening.
	Listener string
	// Quiet is for how long nothing is granted after a failover; zero: there is no quiet time.
	Quiet time.Duration
}

// Fleet counts the database's locks, for the elected sidecar. Types and Pods have at most 20 entries,
// and one for the rest.
type Fleet struct {
	Types []FleetLine
	Pods  []FleetLine
}

// FleetLine is the locks of a type, or of a pod, in one namespace.
type FleetLine struct {
	Namespace, Name          string
	Held, Expired, Waiting   int64
	AverageHold, LongestHold time.Duration
}

// family is a metric whose value comes from another part when it is read.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) family {
	return family{prometheus.NewDesc(prefix+name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string) family {
	return family{prometheus.NewDesc(prefix+name, help, nil, nil), prometheus.CounterValue}
}

var (
	locksHeld        = gauge("locks_held", "Locks that sessions of this sidecar hold, by the type of the key.", "type")
	oldestHold       = gauge("oldest_hold_seconds", "Age of the oldest lock that a session of this sidecar holds.")
	sessions         = gauge("sessions", "Sessions that are open.")
	connections      = gauge("connections", "Connections of apps that are open.")
	leases           = gauge("leases", "Leases of this sidecar.")
	leaseExpiry      = gauge("lease_expiry_seconds", "How long the lease that ends first is still trusted; missing when there is none.")
	leaseLeft        = gauge("lease_left_ratio", "Time left of a lease, as a share of its TTL; the smallest of all leases; missing when there is none.")
	storeReady       = gauge("store_ready", "1 when locks can be granted.")
	storeQuiet       = gauge("store_quiet_seconds", "How long nothing is granted yet after a failover that may have forgotten grants; 0 without.")
	draining         = gauge("draining", "1 when the sidecar stops.")
	poolConnections  = gauge("pool_connections", "Connections to the database, by state; max is the limit.", "state")
	poolWaits        = counter("pool_waits_total", "How often a statement waited for a connection to the database.")
	poolWait         = counter("pool_wait_seconds_total", "How long statements waited for a connection to the database, in all.")
	listener         = gauge("listener", "1 for the present state of the connection that listens for notifications.", "state")
	logLinesDropped  = counter("log_lines_dropped_total", "Log lines that were not written: too many of one kind, or nobody read them.")
	fleetLeader      = gauge("fleet_leader", "1 when this sidecar shows the metrics of the whole database.")
	fleetLocks       = gauge("fleet_locks", "Locks held in the whole database, by namespace and type.", "lock_namespace", "type")
	fleetExpired     = gauge("fleet_expired", "Locks of dead holders in the whole database that nobody has asked for since.", "lock_namespace", "type")
	fleetWaiters     = gauge("fleet_waiters", "Waiters in the whole database, by namespace and type.", "lock_namespace", "type")
	fleetHoldAverage = gauge("fleet_hold_average_seconds", "Average age of the held locks in the whole database.", "lock_namespace", "type")
	fleetHoldLongest = gauge("fleet_hold_longest_seconds", "Age of the oldest held lock in the whole database.", "lock_namespace", "type")
	fleetPodLocks    = gauge("fleet_pod_locks", "Locks held in the whole database, by namespace and pod.", "lock_namespace", "lock_pod")
)

type values chan<- prometheus.Metric

// add adds a value. A label that is not UTF-8 makes the reading fail for this metric only.
func (to values) add(f family, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.kind, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	to <- m
}

func (to values) addIf(f family, on bool, labels ...string) {
	value := 0.0
	if on {
		value = 1
	}
	to.add(f, value, labels...)
}

// Describe implements [prometheus.Collector]. It describes nothing: the metrics depend on other parts.
func (*Set) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (s *Set) Collect(to chan<- prometheus.Metric) {
	if dropped := s.linesDropped.Load(); dropped != nil {
		values(to).add(logLinesDropped, float64((*dropped)()))
	}
	if open := s.Calls.connections.Load(); open != nil {
		values(to).add(connections, float64((*open)()))
	}
	if state := s.Store.state.Load(); state != nil {
		(*state)().collect(to)
	}
	if state := s.Locks.state.Load(); state != nil {
		(*state)().collect(to, s.Locks)
	}
	if fleet := s.Locks.fleet.Load(); fleet != nil {
		f, leads := (*fleet)()
		values(to).addIf(fleetLeader, leads)
		if leads {
			f.collect(to)
		}
	}
}

func (s StoreState) collect(to values) {
	to.add(storeQuiet, s.Quiet.Seconds())
	to.add(poolWaits, float64(s.Waited))
	to.add(poolWait, s.WaitedFor.Seconds())
	for n, connections := range []int{s.Used, s.Idle, s.Max} {
		to.add(poolConnections, float64(connections), connectionStates[n])
	}
	for _, one := range listenerStates {
		to.addIf(listener, s.Listener == one, one)
	}
}

func (s State) collect(to values, l *Locks) {
	held := map[*typed]int64{}
	for name, n := range s.Held {
		held[l.types.of(label(name))] += n
	}
	for name, t := range l.types.all() {
		to.add(locksHeld, float64(held[t]), name)
	}
	to.add(sessions, float64(s.Sessions))
	to.add(leases, float64(s.Leases))
	if s.Leases > 0 {
		to.add(leaseExpiry, s.LeaseExpiry.Seconds())
		to.add(leaseLeft, s.LeaseLeft)
	}
	to.add(oldestHold, s.OldestHold.Seconds())
	to.addIf(storeReady, s.Ready)
	to.addIf(draining, s.Draining)
}

func (f Fleet) collect(to values) {
	for _, line := range f.Types {
		to.add(fleetLocks, float64(line.Held), line.Namespace, line.Name)
		to.add(fleetExpired, float64(line.Expired), line.Namespace, line.Name)
		to.add(fleetWaiters, float64(line.Waiting), line.Namespace, line.Name)
		to.add(fleetHoldAverage, line.AverageHold.Seconds(), line.Namespace, line.Name)
		to.add(fleetHoldLongest, line.LongestHold.Seconds(), line.Namespace, line.Name)
	}
	for _, line := range f.Pods {
		to.add(fleetPodLocks, float64(line.Held), line.Namespace, line.Name)
	}
}
