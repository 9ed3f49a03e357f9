package metrics

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/locksidecar/locksidecar/internal/tracing"
)

// prefix begins the name of each metric; Prometheus sees an underscore.
const prefix = "locksidecar."

// instruments are what is read of the recorders. Names are those of OpenTelemetry.
type instruments struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error

	acquires, releases, lost, sessionsEnded, cacheHits, renewals,
	statementErrors, problems, poolWaits, logLinesDropped metric.Int64Observable
	poolWait metric.Float64Observable

	locksHeld, waiters, sessions, connections, leases, storeReady, draining,
	poolConnections, listener, buildInfo, fleetLeader,
	fleetLocks, fleetExpired, fleetWaiters, fleetPodLocks metric.Int64Observable
	oldestHold, leaseExpiry, leaseLeft, fleetHoldAverage, fleetHoldLongest metric.Float64Observable
}

// Register makes the instruments of counters and gauges, with a provider that has all
// its readers.
func (s *Set) Register(p metric.MeterProvider) error {
	i := &instruments{meter: p.Meter(tracing.Scope, metric.WithInstrumentationVersion(s.version))}
	i.makeCounters()
	i.makeGauges()
	if err := errors.Join(i.errs...); err != nil {
		return err
	}
	_, err := i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s.observe(o, i)
		return nil
	}, i.all...)
	return err
}

func (i *instruments) makeCounters() {
	i.acquires = i.counter("acquires", "Acquires that came to an end, by the type of the key and the result: granted, reentered, skipped, or the code of the problem.")
	i.releases = i.counter("releases", "Releases, by the type of the key and the result: released, reentered, or the code of the problem.")
	i.lost = i.counter("lost", "Locks of sessions that were lost, by the type of the key and the reason.")
	i.sessionsEnded = i.counter("sessions_ended", "Sessions that ended, by the reason.")
	i.cacheHits = i.counter("cache_hits", "Answers that needed no statement, by what was known.")
	i.renewals = i.counter("renewals", "Leases in renewals, by the result: kept, lost, or failed (not heard of; tried again).")
	i.statementErrors = i.counter("statement_errors", "Statements that failed, by their name.")
	i.problems = i.counter("problems", "Answers that are problems, by their code.")
	i.poolWaits = i.counter("pool_waits", "How often a statement waited for a connection to the database.")
	i.poolWait = i.seconds("pool_wait", "How long statements waited for a connection to the database, in all.", true)
	i.logLinesDropped = i.counter("log_lines_dropped", "Log lines that were not written: too many of one kind, or nobody read them.")
}

func (i *instruments) makeGauges() {
	i.locksHeld = i.gauge("locks_held", "Locks that sessions of this sidecar hold, by the type of the key.")
	i.waiters = i.gauge("waiters", "Calls of this sidecar that wait for a lock, by the type of the key.")
	i.oldestHold = i.seconds("oldest_hold", "How long the session's lock is held that is held longest.", false)
	i.sessions = i.gauge("sessions", "Sessions that are open.")
	i.connections = i.gauge("connections", "Connections of apps that are open.")
	i.leases = i.gauge("leases", "Leases of this sidecar.")
	i.leaseExpiry = i.seconds("lease_expiry", "How long the lease that ends first is still trusted; missing when there is none.", false)
	i.leaseLeft = i.ratio("lease_left", "Share of its TTL for which the lease is still trusted that has the least left; missing when there is none.")
	i.storeReady = i.gauge("store_ready", "1 when locks can be had.")
	i.draining = i.gauge("draining", "1 when the sidecar stops.")
	i.poolConnections = i.gauge("pool_connections", "Connections to the database, by state; max: how many there may be.")
	i.listener = i.gauge("listener", "1 for the state of the connection that hears of hand-offs.")
	i.buildInfo = i.gauge("build_info", "1, with the version of the sidecar.")
	i.fleetLeader = i.gauge("fleet_leader", "1 when this sidecar shows the figures of the whole database.")
	i.fleetLocks = i.gauge("fleet_locks", "Locks held in the whole database, by namespace and type.")
	i.fleetExpired = i.gauge("fleet_expired", "Locks in the whole database whose holder is dead, but nobody wanted them yet.")
	i.fleetWaiters = i.gauge("fleet_waiters", "Waiters in the whole database, by namespace and type.")
	i.fleetHoldAverage = i.seconds("fleet_hold_average", "How long the locks that are held in the whole database are held, on average.", false)
	i.fleetHoldLongest = i.seconds("fleet_hold_longest", "How long the lock is held that is held longest in the whole database.", false)
	i.fleetPodLocks = i.gauge("fleet_pod_locks", "Locks held in the whole database, by namespace and pod.")
}

func (i *instruments) counter(name, description string) metric.Int64Observable {
	c, err := i.meter.Int64ObservableCounter(prefix+name, metric.WithDescription(description))
	return keep(i, metric.Int64Observable(c), err)
}

func (i *instruments) gauge(name, description string) metric.Int64Observable {
	g, err := i.meter.Int64ObservableGauge(prefix+name, metric.WithDescription(description))
	return keep(i, metric.Int64Observable(g), err)
}

func (i *instruments) ratio(name, description string) metric.Float64Observable {
	g, err := i.meter.Float64ObservableGauge(prefix+name, metric.WithDescription(description), metric.WithUnit("1"))
	return keep(i, metric.Float64Observable(g), err)
}

// seconds is a gauge, or with grows a counter, of seconds.
func (i *instruments) seconds(name, description string, grows bool) metric.Float64Observable {
	if grows {
		c, err := i.meter.Float64ObservableCounter(prefix+name, metric.WithDescription(description), metric.WithUnit("s"))
		return keep(i, metric.Float64Observable(c), err)
	}
	g, err := i.meter.Float64ObservableGauge(prefix+name, metric.WithDescription(description), metric.WithUnit("s"))
	return keep(i, metric.Float64Observable(g), err)
}

func keep[T metric.Observable](i *instruments, instrument T, err error) T {
	i.all = append(i.all, instrument)
	i.errs = append(i.errs, err)
	return instrument
}

func (s *Set) observe(o metric.Observer, i *instruments) {
	o.ObserveInt64(i.buildInfo, 1, labels(versionLabel.String(s.version)))
	if dropped := s.linesDropped.Load(); dropped != nil {
		o.ObserveInt64(i.logLinesDropped, (*dropped)())
	}
	s.Calls.observe(o, i)
	s.Store.observe(o, i)
	s.Locks.observe(o, i)
}

func (c *Calls) observe(o metric.Observer, i *instruments) {
	c.problems.observe(o, i.problems)
	if connections := c.connections.Load(); connections != nil {
		o.ObserveInt64(i.connections, int64((*connections)()))
	}
}

func (s *Store) observe(o metric.Observer, i *instruments) {
	s.failed.observe(o, i.statementErrors)
	state := s.state.Load()
	if state == nil {
		return
	}
	now := (*state)()
	o.ObserveInt64(i.poolWaits, now.Waited)
	o.ObserveFloat64(i.poolWait, now.WaitedFor.Seconds())
	for n, connections := range []int{now.Used, now.Idle, now.Max} {
		o.ObserveInt64(i.poolConnections, int64(connections), labels(stateLabel.String(connectionStates[n])))
	}
	for _, one := range listenerStates {
		o.ObserveInt64(i.listener, oneIf(now.Listener == one), labels(stateLabel.String(one)))
	}
}

func (l *Locks) observe(o metric.Observer, i *instruments) {
	held := map[*typed]int64{}
	if state := l.state.Load(); state != nil {
		now := (*state)()
		for name, n := range now.Held {
			held[l.named(name)] += n
		}
		now.observe(o, i)
	}
	for _, t := range l.types.all() {
		o.ObserveInt64(i.locksHeld, held[t], t.labels)
		o.ObserveInt64(i.waiters, t.waiting.Load(), t.labels)
		o.ObserveInt64(i.acquires, t.waits.count(), t.grantedLabels)
		o.ObserveInt64(i.releases, t.released.Load(), t.releasedLabels)
		t.acquires.observe(o, i.acquires)
		t.releases.observe(o, i.releases)
		t.lost.observe(o, i.lost)
	}
	l.renewed.observe(o, i.renewals)
	l.cached.observe(o, i.cacheHits)
	l.sessions.observe(o, i.sessionsEnded)
	if fleet := l.fleet.Load(); fleet != nil {
		f, leads := (*fleet)()
		o.ObserveInt64(i.fleetLeader, oneIf(leads))
		if leads {
			f.observe(o, i)
		}
	}
}

func (s State) observe(o metric.Observer, i *instruments) {
	o.ObserveInt64(i.sessions, int64(s.Sessions))
	o.ObserveInt64(i.leases, int64(s.Leases))
	if s.Leases > 0 {
		o.ObserveFloat64(i.leaseExpiry, s.LeaseExpiry.Seconds())
		o.ObserveFloat64(i.leaseLeft, s.LeaseLeft)
	}
	o.ObserveFloat64(i.oldestHold, s.OldestHold.Seconds())
	o.ObserveInt64(i.storeReady, oneIf(s.Ready))
	o.ObserveInt64(i.draining, oneIf(s.Draining))
}

func (f Fleet) observe(o metric.Observer, i *instruments) {
	for _, line := range f.Types {
		of := labels(namespaceLabel.String(line.Namespace), typeLabel.String(line.Name))
		o.ObserveInt64(i.fleetLocks, line.Held, of)
		o.ObserveInt64(i.fleetExpired, line.Expired, of)
		o.ObserveInt64(i.fleetWaiters, line.Waiting, of)
		o.ObserveFloat64(i.fleetHoldAverage, line.AverageHold.Seconds(), of)
		o.ObserveFloat64(i.fleetHoldLongest, line.LongestHold.Seconds(), of)
	}
	for _, line := range f.Pods {
		o.ObserveInt64(i.fleetPodLocks, line.Held, labels(namespaceLabel.String(line.Namespace), podLabel.String(line.Name)))
	}
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
