// Package metrics has the instruments of the sidecar. Others record; package
// telemetry decides where the figures go.
//
// Cardinality is bounded: a key is never a label, types are capped (see typeset.go),
// every other label has few values that stand here or in the contract.
//
// To record costs a look-up and atomic additions, no lock and no memory: recorders are
// on the path of each call. Counters and gauges are read by instruments of OpenTelemetry
// ([Set.Register]); histograms are brought to its readers as they are ([Set.Produce]).
//
// A nil recorder records nothing.
package metrics

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// The labels.
const (
	typeLabel      = attribute.Key("type")
	resultLabel    = attribute.Key("result")
	reasonLabel    = attribute.Key("reason")
	kindLabel      = attribute.Key("kind")
	stateLabel     = attribute.Key("state")
	codeLabel      = attribute.Key("code")
	statementLabel = attribute.Key("statement")
	operationLabel = attribute.Key("operation")
	namespaceLabel = attribute.Key("lock.namespace")
	podLabel       = attribute.Key("lock.pod")
	versionLabel   = attribute.Key("version")
)

// Results of an acquire that are no codes of problems.
const (
	Granted   = "granted"
	Reentered = "reentered"
	Skipped   = "skipped"
	Released  = "released"
)

// Reasons for which a lock ends that are no losses.
const (
	sessionEnded = "session_ended"
)

// Values of labels whose counters are there from the start, at zero.
var (
	lostReasons      = []string{"expired", "store_lost", "disconnected", "max_hold", "forced", "shutdown"}
	sessionReasons   = []string{"dropped", "deleted", "shutdown"}
	renewalResults   = []string{"kept", "lost", "failed"}
	cacheKinds       = []string{"denial", "held_here", "entry", "repeat", "read", "check", "ended"}
	listenerStates   = []string{"off", "connecting", "listening"}
	connectionStates = []string{"used", "idle", "max"}
)

// Locks records what happens to locks, for package lease.
type Locks struct {
	exemplars bool
	types     table[typed]
	handOffs  *histogram
	renewals  *histogram
	renewed   counters
	cached    counters
	sessions  counters
	state     atomic.Pointer[func() State]
	fleet     atomic.Pointer[func() (Fleet, bool)]
}

func newLocks(exemplars bool) *Locks {
	l := &Locks{
		exemplars: exemplars,
		handOffs:  newHistogram(handOffBounds, exemplars),
		renewals:  newHistogram(statementBounds, false),
		renewed:   counters{label: resultLabel},
		cached:    counters{label: kindLabel},
		sessions:  counters{label: reasonLabel},
	}
	l.renewed.start(renewalResults...)
	l.cached.start(cacheKinds...)
	l.sessions.start(sessionReasons...)
	return l
}

// Acquired records the end of an acquire of one key: the result is one of the words
// above, or the code of the problem, and waited how long the call took. ctx may hold
// the span of the call, for exemplars.
func (l *Locks) Acquired(ctx context.Context, key, result string, waited time.Duration) {
	if l == nil {
		return
	}
	if t := l.of(key); result == Granted {
		t.waits.took(ctx, waited)
	} else {
		t.acquires.add(result, 1)
	}
}

// Waits records that one call more waits for this key, or one less.
func (l *Locks) Waits(key string, change int) {
	if l != nil {
		l.of(key).waiting.Add(int64(change))
	}
}

// Ended records the end of a session's lock: why (released, session_ended, or the
// reason of the loss), and how long it was held. ctx may hold its span.
func (l *Locks) Ended(ctx context.Context, key, reason string, held time.Duration) {
	if l == nil {
		return
	}
	t := l.of(key)
	t.holds.took(ctx, held)
	if reason != Released && reason != sessionEnded {
		t.lost.add(reason, 1)
	}
}

// Releases records the result of a release: released, reentered (entries remain), or
// the code of the problem.
func (l *Locks) Releases(key, result string) {
	if l == nil {
		return
	}
	if t := l.of(key); result == Released {
		t.released.Add(1)
	} else {
		t.releases.add(result, 1)
	}
}

// HandedOff records how long a hand-off took, from the store's commit until this
// sidecar, where the waiter is, knew of it.
func (l *Locks) HandedOff(ctx context.Context, took time.Duration) {
	if l != nil {
		l.handOffs.took(ctx, took)
	}
}

// Cached records that an answer needed no statement. Kinds: denial (the cache of
// denials), held_here (held by a session of this sidecar), entry (a reentry), read
// (GET), check (PATCH), ended (a claim on a lock whose end is remembered).
func (l *Locks) Cached(kind string) {
	if l != nil {
		l.cached.add(kind, 1)
	}
}

// Renewed records a renewal: how long it took, and of how many leases it kept, lost
// or failed to hear.
func (l *Locks) Renewed(took time.Duration, kept, lost, failed int) {
	if l == nil {
		return
	}
	l.renewals.took(context.Background(), took)
	for i, n := range []int{kept, lost, failed} {
		l.renewed.add(renewalResults[i], int64(n))
	}
}

// SessionEnded records why a session ended: dropped, deleted, shutdown.
func (l *Locks) SessionEnded(reason string) {
	if l != nil {
		l.sessions.add(reason, 1)
	}
}

// State is what is true of the locks now, for gauges. It is asked for whenever the
// figures are read, and may take a few milliseconds.
type State struct {
	Sessions int
	Leases   int
	// LeaseExpiry is how long the lease that ends first is still trusted; zero when
	// there is none.
	LeaseExpiry time.Duration
	// LeaseLeft is for which share of its TTL the lease is still trusted that has the
	// least of it left.
	LeaseLeft float64
	// Held is how many locks sessions hold, by the type of their keys ([store.TypeOf]).
	Held map[string]int64
	// OldestHold is how long the session's lock is held that is held longest.
	OldestHold time.Duration
	// Ready: locks can be had.
	Ready, Draining bool
}

// Observe makes the gauges of what state returns.
func (l *Locks) Observe(state func() State) {
	if l != nil {
		l.state.Store(&state)
	}
}

// Store records what a store does, for package store/postgres.
type Store struct {
	statements histograms
	failed     counters
	batches    histograms
	state      atomic.Pointer[func() StoreState]
}

func newStore(exemplars bool) *Store {
	return &Store{
		statements: histograms{label: statementLabel, scale: statementBounds, exemplars: exemplars},
		failed:     counters{label: statementLabel},
		batches:    histograms{label: operationLabel, scale: batchBounds},
	}
}

// Statement records one statement, by its name, and whether it failed.
func (s *Store) Statement(ctx context.Context, name string, took time.Duration, err error) {
	if s == nil {
		return
	}
	s.statements.took(ctx, name, took)
	failed := int64(0)
	if err != nil {
		failed = 1
	}
	s.failed.add(name, failed) // zero, too, so that it is there before it grows
}

// Batch records how many items one operation carried out.
func (s *Store) Batch(operation string, items int) {
	if s != nil {
		s.batches.record(context.Background(), operation, int64(items))
	}
}

// StoreState is what is true of the store now, for gauges.
type StoreState struct {
	// Connections of the pools: in use, idle, and how many there may be.
	Used, Idle, Max int
	// Waited is how often a statement waited for a connection, WaitedFor how long in
	// all.
	Waited    int64
	WaitedFor time.Duration
	// Listener is off, connecting, or listening.
	Listener string
}

// Observe makes the gauges of what state returns.
func (s *Store) Observe(state func() StoreState) {
	if s != nil {
		s.state.Store(&state)
	}
}

// Calls records what the HTTP side sees, for package proxy.
type Calls struct {
	problems    counters
	connections atomic.Pointer[func() int]
}

// Problem records an answer that is a problem, by its code.
func (c *Calls) Problem(code string) {
	if c != nil {
		c.problems.add(code, 1)
	}
}

// Observe makes the gauge of open connections of apps.
func (c *Calls) Observe(connections func() int) {
	if c != nil {
		c.connections.Store(&connections)
	}
}

// Fleet is what the whole database holds, as the elected sidecar knows it. Types and
// Pods have at most twenty entries and what is left of the others.
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

// ObserveFleet makes the gauges of the fleet. fleet reports false where another
// sidecar is elected: then only that is shown.
func (l *Locks) ObserveFleet(fleet func() (Fleet, bool)) {
	if l != nil {
		l.fleet.Store(&fleet)
	}
}
