package store

import "time"

// SignalKind is what a signal requests from a holder.
type SignalKind uint8

const (
	// Stop asks the holder to finish its work and release.
	Stop SignalKind = iota + 1
	// Break makes the holder lose the lock at once.
	Break
)

// SignalID names a signal that is not acknowledged yet.
type SignalID int64

// Signal is a request to the holder of a key.
type Signal struct {
	ID   SignalID // set by the store
	Kind SignalKind
	Key  string
	// Token names the grant. Signals sets it. In a Signal call, zero means each present holder of the key.
	Token int64
	// Reason is text for people; nil means none.
	Reason *string
	// At is the time of the request, by the store's clock.
	At time.Time
}

// Stopping says that the holder of a lock was asked to stop.
type Stopping struct {
	// Reason is text for people; nil means none.
	Reason *string
	// At is the time of the first request, by the store's clock. A later request changes only the reason.
	At time.Time
}

// EventKind is what happened to a key.
type EventKind uint8

const (
	// EventAcquired: the key was granted, under Token. A Get shows the details.
	EventAcquired EventKind = iota + 1
	// EventReleased: the holder released the key. A MinHold may still keep it.
	EventReleased
	// EventExpired: the holder's lease was reaped.
	EventExpired
	// EventStopping: the holder was asked to stop.
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
	// Stopping is set for EventStopping.
	Stopping *Stopping
}
