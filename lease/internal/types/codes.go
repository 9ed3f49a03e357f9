package types

import (
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/store"
)

// CodeOf is the code of an error of this package, as in the API.
func CodeOf(err error) string {
	switch {
	case Is[*HeldError](err): // the most frequent first
		return observe.Held
	case Is[*TimeoutError](err):
		return observe.Timeout
	case Is[*SkippedError](err):
		return observe.Skipped
	case errors.Is(err, ErrCallerLeft), errors.Is(err, ErrWithdrawn):
		return observe.CallerLeft
	case errors.Is(err, ErrSessionEnded):
		return observe.SessionEnded
	case errors.Is(err, ErrDraining):
		return observe.Draining
	case Is[*LimitError](err):
		return observe.Limit
	case Is[*LostError](err):
		return observe.Lost
	case Is[*NotHolderError](err):
		return observe.NotHolder
	case Is[*NotHeldError](err):
		return observe.NotHeld
	case Is[*ReentryError](err):
		return codeOfReentry(err)
	case Is[*LimitMismatchError](err):
		return observe.LimitMismatch
	case Is[*InvalidError](err):
		return observe.Invalid
	case Is[*store.UnsupportedError](err):
		return observe.Unsupported
	case store.Unavailable(err):
		return observe.Unavailable
	default:
		return observe.Internal
	}
}

func codeOfReentry(err error) string {
	if wrong, _ := errors.AsType[*ReentryError](err); wrong.Given > wrong.Have {
		return observe.NotHolder
	}
	return observe.Invalid
}

// Is reports whether an error is, or wraps, one of type E.
func Is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// ResultOf is the result of an acquire for the metrics.
func ResultOf(g *Grant, err error) string {
	switch {
	case err != nil:
		return CodeOf(err)
	case g.Reentry > 1:
		return observe.Reentered
	default:
		return observe.Granted
	}
}
