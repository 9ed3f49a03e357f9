// Package metrics has the instruments of the sidecar. Others record; package
// telemetry decides where the figures go.
//
// Cardinality is bounded: a key is never a label, types are capped (see typeset.go),
// every other label has few values that stand here or in the contract.
//
// A nil recorder records nothing.
package metrics

import (
	"context"
	"time"
)

// Locks records what happens to locks, for package lease.
type Locks struct{}

// Results of an acquire that are no codes of problems.
const (
	Granted   = "granted"
	Reentered = "reentered"
	Skipped   = "skipped"
	Released  = "released"
)

// Acquired records the end of an acquire of one key: the result is one of the words
// above, or the code of the problem, and waited how long the call took. ctx may hold
// the span of the call, for exemplars.
func (l *Locks) Acquired(ctx context.Context, key, result string, waited time.Duration) {}

// Holds records that one lock more of a session, under this key, is held (+1), or one
// less (-1).
func (l *Locks) Holds(key string, change int) {}

// Waits records that one call more waits for this key, or one less.
func (l *Locks) Waits(key string, change int) {}

// Ended records the end of a session's lock: why (released, session_ended, or the
// reason of the loss), and how long it was held. ctx may hold its span.
func (l *Locks) Ended(ctx context.Context, key, reason string, held time.Duration) {}

// Releases records the result of a release: released, reentered (entries remain), or
// the code of the problem.
func (l *Locks) Releases(key, result string) {}

// HandedOff records how long a hand-off took, from the store's commit until this
// sidecar, where the waiter is, knew of it.
func (l *Locks) HandedOff(ctx context.Context, took time.Duration) {}

// Cached records that an answer needed no statement. Kinds: denial (the cache of
// denials), held_here (held by a session of this sidecar), entry (a reentry), read
// (GET), check (PATCH), ended (a claim on a lock whose end is remembered).
func (l *Locks) Cached(kind string) {}

// Renewed records a renewal: how long it took, and of how many leases it kept, lost
// or failed to hear.
func (l *Locks) Renewed(took time.Duration, kept, lost, failed int) {}

// SessionEnded records why a session ended: dropped, deleted, shutdown.
func (l *Locks) SessionEnded(reason string) {}

// State is what is true of the locks now, for gauges. It is asked for whenever the
// figures are read, and may take a few milliseconds.
type State struct {
	Sessions int
	Leases   int
	// LeaseExpiry is how long the lease that ends first is still trusted; zero when
	// there is none.
	LeaseExpiry time.Duration
	// OldestHold is how long the session's lock is held that is held longest.
	OldestHold time.Duration
	// Ready: locks can be had.
	Ready, Draining bool
}

// Observe makes the gauges of what state returns.
func (l *Locks) Observe(state func() State) {}

// Store records what a store does, for package store/postgres.
type Store struct{}

// Statement records one statement, by the name of its file, and whether it failed.
func (s *Store) Statement(ctx context.Context, name string, took time.Duration, err error) {}

// Batch records how many items one operation carried out.
func (s *Store) Batch(operation string, items int) {}

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
func (s *Store) Observe(state func() StoreState) {}

// Calls records what the HTTP side sees, for package proxy.
type Calls struct{}

// Problem records an answer that is a problem, by its code.
func (c *Calls) Problem(code string) {}

// Observe makes the gauge of open connections of apps.
func (c *Calls) Observe(connections func() int) {}

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
func (l *Locks) ObserveFleet(fleet func() (Fleet, bool)) {}
