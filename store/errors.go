package store

import "errors"

// Error is how a store fails. Its behaviour matters to a caller, not its origin.
type Error struct {
	// Op is the operation, in the words of [Store].
	Op string
	// Err is the cause.
	Err error
	// Unknown: the operation may have been carried out, wholly. When false,
	// nothing was done.
	Unknown bool
}

func (e *Error) Error() string {
	if e.Unknown {
		return "store: " + e.Op + ": outcome unknown: " + e.Err.Error()
	}
	return "store: " + e.Op + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether err says that the store could not do its work for
// now: trying again later may help.
func Unavailable(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// OutcomeUnknown reports whether the operation that failed with err may have
// been carried out all the same. Such an attempt is repeated with the same
// AttemptID, or withdrawn.
func OutcomeUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unknown
}
