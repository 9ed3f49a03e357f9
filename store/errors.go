package store

import (
	"errors"
	"fmt"
	"time"
)

// Error is the error that a store returns.
type Error struct {
	// Op is the operation, in the words of [Store].
	Op string
	// Err is the cause.
	Err error
	// Unknown: the operation may have been carried out, then completely. If false, nothing was done.
	Unknown bool
}

func (e *Error) Error() string {
	if e.Unknown {
		return "store: " + e.Op + ": outcome unknown: " + e.Err.Error()
	}
	return "store: " + e.Op + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether the store cannot work at present. A later try may help.
func Unavailable(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// OutcomeUnknown reports whether the failed operation may have been carried out. The caller repeats such an
// attempt with the same AttemptID, or withdraws it.
func OutcomeUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unknown
}

// QuietError says that the store grants nothing for this time, because it may have forgotten grants in which sidecars still believe.
type QuietError struct{ Left time.Duration }

func (e *QuietError) Error() string {
	return fmt.Sprintf("the store has a quiet time for another %s, in which it grants nothing: it was replaced in a failover, or restarted, or is new, "+
		"so it may not know of locks that others hold", e.Left.Round(time.Millisecond))
}
