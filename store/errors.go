package store

import "errors"

// Error is how a store fails.
type Error struct {
	// Op is the operation, in the words of [Store].
	Op string
	// Err is the cause.
	Err error
	// Unknown: the operation may have been carried out, wholly. When false, nothing was done.
	Unknown bool
}

func (e *Error) Error() string {
	if e.Unknown {
		return "store: " + e.Op + ": outcome unknown: " + e.Err.Error()
	}
	return "store: " + e.Op + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether err says that the store could not work for now: a later try may help.
func Unavailable(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// OutcomeUnknown reports whether the operation that failed with err may have been carried out. Such
// an attempt is repeated with the same AttemptID, or withdrawn.
func OutcomeUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unknown
}
