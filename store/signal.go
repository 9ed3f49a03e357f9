package store

import "time"

// SignalKind is what a holder is asked for.
type SignalKind uint8

const (
	// Stop: come to an end, and release.
	Stop SignalKind = iota + 1
	// Break: give the lock up at once.
	Break
)

// SignalID names a signal that is on its way to a holder.
type SignalID int64

// Signal asks the holder of a key for something.
type Signal struct {
	ID   SignalID // set by the store
	Kind SignalKind
	Key  string
	// Token is the grant that is meant. Signals sets it; a Signal call means whoever holds the key,
	// if it is zero: all holders of a shared lock.
	Token int64
	// Reason is for people; nil: none was given.
	Reason *string
	// At is when it was asked for, by the store's clock.
	At time.Time
}

// Stopping says that the holder of a lock was asked to stop.
type Stopping struct {
	// Reason is for people; nil: none was given.
	Reason *string
	// At is when it was first asked for, by the store's clock. A later request changes the reason only.
	At time.Time
}

// EventKind is what happened to a key.
type EventKind uint8

const (
	// EventAcquired: it was granted, under Token. A read tells more.
	EventAcquired EventKind = iota + 1
	// EventReleased: its holder released it. It may still be kept: see MinHold.
	EventReleased
	// EventExpired: its holder's lease was reaped.
	EventExpired
	// EventStopping: its holder was asked to stop.
	EventStopping
)

// Event is something that happened to a watched key.
type Event struct {
	Kind EventKind
	Key  string
	// Token is the grant that began, ended, or should stop.
	Token int64
	// Outcome and Result are those of the release (EventReleased).
	Outcome ReleaseOutcome
	Result  []byte
	// Stopping is set by a EventStopping.
	Stopping *Stopping
}
