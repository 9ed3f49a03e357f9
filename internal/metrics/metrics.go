// Package metrics counts the events of the sidecar, with the client library of Prometheus. Other packages
// record; package telemetry decides where the metrics are sent.
//
// Cardinality is limited: a key is never a label, the number of types is limited (see table.go), and every
// other label has few values, which are in this package or in the API.
//
// Recording takes a look-up and atomic additions, without mutexes and allocations, because each call records:
// 0.13 µs of CPU time for an acquire and its release, of about 7 µs in total (go test -bench Pair, and -bench
// AcquireReleaseParallel in package lease). Gauges are computed when the metrics are read (state.go).
//
// A nil recorder records nothing.
package metrics

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/locksidecar/locksidecar/store"
)

const prefix = "locksidecar_"

// Results of an acquire other than the codes of problems.
const (
	Granted   = "granted"
	Reentered = "reentered"
	Skipped   = "skipped"
	Released  = "released"
)

// Reasons for the end of a lock other than losses.
const (
	sessionEnded = "session_ended"
)

// Label values whose counters exist from the start, at zero.
var (
	lostReasons      = []string{"expired", "store_lost", "disconnected", "max_hold", "forced", "shutdown"}
	sessionReasons   = []string{"dropped", "deleted", "shutdown"}
	renewalResults   = []string{"renewed", "lost", "failed"}
	cacheKinds       = []string{"held_cache", "held_here", "entry", "repeat", "read", "check", "ended"}
	listenerStates   = []string{"off", "connecting", "listening", "polling"}
	connectionStates = []string{"used", "idle", "max"}
	paid             = []string{"true", "false"}
)

// Set contains all recorders of a sidecar.
type Set struct {
	// Registry contains all metrics of the set.
	Registry *prometheus.Registry

	Locks *Locks
	Store *Store
	Calls *Calls

	linesDropped atomic.Pointer[func() int64]
}

// New makes a set of recorders. With exemplars, histograms remember the spans of some values.
func New(version string, exemplars bool) *Set {
	registry := prometheus.NewRegistry()
	f := factory{promauto.With(registry)}
	s := &Set{Registry: registry, Locks: newLocks(f, exemplars), Store: newStore(f, exemplars), Calls: newCalls(f)}
	f.gauges("build_info", "1, with the version of the sidecar.", "version").WithLabelValues(version).Set(1)
	registry.MustRegister(s)
	return s
}

// ObserveLog makes the counter of log lines that were not written.
func (s *Set) ObserveLog(dropped func() int64) { s.linesDropped.Store(&dropped) }

type factory struct{ promauto.Factory }

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
}

func (f factory) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}, labels)
}

// Locks records the events of locks, for package lease.
type Locks struct {
	types                     *table[*typed]
	handOffs                  *histogram
	renewals                  *histogram
	renewed, cached, sessions *table[prometheus.Counter]
	keptGrants                prometheus.Counter
	recalls                   *table[prometheus.Counter]
	state                     atomic.Pointer[func() State]
	fleet                     atomic.Pointer[func() (store.Stats, bool)]
}

type typed struct {
	waits, holds      *histogram
	waiters           prometheus.Gauge
	exclusive, shared acquires
	released          prometheus.Counter // the most frequent result
	releases, lost    *table[prometheus.Counter]
}

type acquires struct {
	granted prometheus.Counter // the most frequent result
	all     *table[prometheus.Counter]
}

func newAcquires(of *prometheus.CounterVec, mode string) acquires {
	all := newCounters(of.MustCurryWith(prometheus.Labels{"mode": mode}), Granted)
	return acquires{granted: all.of(Granted), all: all}
}

func newLocks(f factory, exemplars bool) *Locks {
	acquires := f.counters("acquires_total", "Acquires that came to an end, by the type of the key, the mode (exclusive or shared) and the result: granted, reentered, skipped, or the code of the problem.", "type", "mode", "result")
	releases := f.counters("releases_total", "Releases, by the type of the key and the result: released, reentered, or the code of the problem.", "type", "result")
	lost := f.counters("lost_total", "Locks of sessions that were lost, by the type of the key and the reason.", "type", "reason")
	waits := f.histograms("wait_duration_seconds", "How long acquires that were granted took, by the type of the key.", lockBuckets, "type")
	holds := f.histograms("hold_duration_seconds", "How long locks of sessions were held, by the type of the key.", lockBuckets, "type")
	waiters := f.gauges("waiters", "Calls of this sidecar that wait for a lock, by the type of the key.", "type")
	handOffs := f.histograms("hand_off_duration_seconds", "From the commit of a hand-off until the waiter's sidecar knew of it.", handOffBuckets)
	renewals := f.histograms("renewal_duration_seconds", "How long a renewal of leases took.", statementBuckets)
	return &Locks{
		types: newTable(maxTypes, func(name string) *typed {
			of := prometheus.Labels{"type": name}
			t := &typed{
				waits:     newHistogram(waits.WithLabelValues(name), lockBuckets, exemplars),
				holds:     newHistogram(holds.WithLabelValues(name), lockBuckets, exemplars),
				waiters:   waiters.WithLabelValues(name),
				exclusive: newAcquires(acquires.MustCurryWith(of), "exclusive"),
				shared:    newAcquires(acquires.MustCurryWith(of), "shared"),
				releases:  newCounters(releases.MustCurryWith(of), Released),
				lost:      newCounters(lost.MustCurryWith(of), lostReasons...),
			}
			t.released = t.releases.of(Released)
			return t
		}),
		handOffs:   newHistogram(handOffs.WithLabelValues(), handOffBuckets, exemplars),
		renewals:   newHistogram(renewals.WithLabelValues(), statementBuckets, false),
		renewed:    newCounters(f.counters("renewals_total", "Leases in renewals, by the result: renewed, lost, or failed (no answer; tried again).", "result"), renewalResults...),
		cached:     newCounters(f.counters("cache_hits_total", "Answers that needed no statement, by their source.", "kind"), cacheKinds...),
		sessions:   newCounters(f.counters("sessions_ended_total", "Sessions that ended, by the reason.", "reason"), sessionReasons...),
		keptGrants: f.counters("kept_grants_total", "Grants of keys that this sidecar had kept: without a statement.").WithLabelValues(),
		recalls: newCounters(f.counters("recalls_total",
			"Keys that this sidecar kept, or could have kept, and that another one wanted, by whether keeping them had paid: whether enough sessions here had taken the key before.", "paid"), paid...),
	}
}

func (l *Locks) of(key string) *typed { return l.types.of(label(store.TypeOf(key))) }

// Acquired records the end of an acquire of one key: a result as above or the code of the problem, and the
// duration of the call. ctx may contain the call's span, for exemplars.
func (l *Locks) Acquired(ctx context.Context, key string, shared bool, result string, waited time.Duration) {
	if l == nil {
		return
	}
	t := l.of(key)
	a := &t.exclusive
	if shared {
		a = &t.shared
	}
	if result == Granted {
		t.waits.took(ctx, waited)
		a.granted.Inc()
	} else {
		a.all.of(result).Inc()
	}
}

// Waits records a change in the number of calls that wait for this key.
func (l *Locks) Waits(key string, change int) {
	if l != nil {
		l.of(key).waiters.Add(float64(change))
	}
}

// Ended records why a session's lock ended (released, session_ended, or the reason of the loss), and how long
// it was held. ctx may contain its span.
func (l *Locks) Ended(ctx context.Context, key, reason string, held time.Duration) {
	if l == nil {
		return
	}
	t := l.of(key)
	t.holds.took(ctx, held)
	if reason != Released && reason != sessionEnded {
		t.lost.of(reason).Inc()
	}
}

// Releases records a release: released, reentered (entries remain), or the code of the problem.
func (l *Locks) Releases(key, result string) {
	if l == nil {
		return
	}
	if t := l.of(key); result == Released {
		t.released.Inc()
	} else {
		t.releases.of(result).Inc()
	}
}

// HandedOff records a hand-off's time, from the store's commit until the waiter's sidecar knew it.
func (l *Locks) HandedOff(ctx context.Context, took time.Duration) {
	if l != nil {
		l.handOffs.took(ctx, took)
	}
}

// Cached records an answer that needed no SQL statement. Kinds: held_cache, held_here (by a session of this sidecar),
// entry (a reentry), read (GET), check (PATCH), ended (a claim on a lock whose end the sidecar remembers).
func (l *Locks) Cached(kind string) {
	if l != nil {
		l.cached.of(kind).Inc()
	}
}

// KeptGranted records the grant of a kept key.
func (l *Locks) KeptGranted() {
	if l != nil {
		l.keptGrants.Inc()
	}
}

// Recalled records that another sidecar wanted a key that this one may keep, and whether keeping it had paid before.
func (l *Locks) Recalled(hadPaid bool) {
	if l != nil {
		l.recalls.of(strconv.FormatBool(hadPaid)).Inc()
	}
}

// Renewed records a renewal: its duration, and how many leases were kept, lost, or failed without an answer.
func (l *Locks) Renewed(took time.Duration, kept, lost, failed int) {
	if l == nil {
		return
	}
	l.renewals.took(context.Background(), took)
	for i, n := range []int{kept, lost, failed} {
		l.renewed.of(renewalResults[i]).Add(float64(n))
	}
}

// SessionEnded records why a session ended: dropped, deleted, shutdown.
func (l *Locks) SessionEnded(reason string) {
	if l != nil {
		l.sessions.of(reason).Inc()
	}
}

// Observe makes the gauges from the result of state.
func (l *Locks) Observe(state func() State) {
	if l != nil {
		l.state.Store(&state)
	}
}

// ObserveFleet makes the fleet's gauges. If fleet returns false, another sidecar is elected, and only
// fleet_leader is shown.
func (l *Locks) ObserveFleet(fleet func() (store.Stats, bool)) {
	if l != nil {
		l.fleet.Store(&fleet)
	}
}

// Store records the work of a store, for package store/postgres.
type Store struct {
	statements *table[*histogram]
	failed     *table[prometheus.Counter]
	batches    *table[prometheus.Observer]
	state      atomic.Pointer[func() StoreState]
}

func newStore(f factory, exemplars bool) *Store {
	statements := f.histograms("statement_duration_seconds", "How long a statement took, by its name.", statementBuckets, "statement")
	batches := f.histograms("batch_size", "How many calls one operation of the store carried out.", batchBuckets, "operation")
	return &Store{
		statements: newTable(maxNames, func(name string) *histogram {
			return newHistogram(statements.WithLabelValues(name), statementBuckets, exemplars)
		}),
		failed:  newCounters(f.counters("statement_errors_total", "Statements that failed, by their name.", "statement")),
		batches: newTable(maxNames, func(name string) prometheus.Observer { return batches.WithLabelValues(name) }),
	}
}

// Statement records one statement, by its name, and whether it failed.
func (s *Store) Statement(ctx context.Context, name string, took time.Duration, err error) {
	if s == nil {
		return
	}
	s.statements.of(name).took(ctx, took)
	failed := s.failed.of(name) // the counter must exist before it grows
	if err != nil {
		failed.Inc()
	}
}

// Batch records how many items one operation carried out.
func (s *Store) Batch(operation string, items int) {
	if s != nil {
		s.batches.of(operation).Observe(float64(items))
	}
}

// Observe makes the gauges from the result of state.
func (s *Store) Observe(state func() StoreState) {
	if s != nil {
		s.state.Store(&state)
	}
}

// Calls records HTTP calls, for package proxy.
type Calls struct {
	problems    *table[prometheus.Counter]
	connections atomic.Pointer[func() int]
}

func newCalls(f factory) *Calls {
	return &Calls{problems: newCounters(f.counters("problems_total", "Answers that are problems, by their code.", "code"))}
}

// Problem records an answer that is a problem, by its code.
func (c *Calls) Problem(code string) {
	if c != nil {
		c.problems.of(code).Inc()
	}
}

// Observe makes the gauge of open connections of apps.
func (c *Calls) Observe(connections func() int) {
	if c != nil {
		c.connections.Store(&connections)
	}
}
