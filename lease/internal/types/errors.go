package types

import (
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/store"
)

var (
	// ErrSessionEnded: the session of the call has ended, or never existed.
	ErrSessionEnded = errors.New("the session has ended")
	// ErrDraining: the sidecar shuts down; releases still work.
	ErrDraining = errors.New("the sidecar is shutting down")
	// ErrCallerLeft: the context of the call ended before the outcome was known. A grant that arrives later
	// is released.
	ErrCallerLeft = errors.New("the caller has gone")
	// ErrWithdrawn: the call was ended by a release that names its request id.
	ErrWithdrawn = errors.New("the request was released by its request_id before it was granted")
)

// ErrRowLocked: another session had the key's row locked until the store's timeout.
var ErrRowLocked = errors.New("another database session keeps the row of this key locked")

// RowLocked is the error of an operation that did nothing because of a locked row. It needs no withdrawal,
// and a later try may succeed.
func RowLocked(op string) error { return &store.Error{Op: op, Err: ErrRowLocked} }

// QuietError: the store grants nothing for this time, because it may have forgotten grants.
type QuietError = store.QuietError

// Quiet is the error of an acquire in a quiet time. A later try may succeed.
func Quiet(left time.Duration) error {
	return &store.Error{Op: "acquire", Err: &QuietError{Left: left}}
}

// ClaimError is the error of a claim: that of its call, or that its row was locked.
func ClaimError(op string, status store.ClaimStatus, err error) error {
	if err == nil && status == store.ClaimRowLocked {
		return RowLocked(op)
	}
	return err
}

// HeldError: another holder has the lock, and the request did not want to wait.
type HeldError struct {
	Lock store.Lock
	// Cached: the answer came from the local cache. Lock.QueueLength may count only the calls that
	// wait through this sidecar.
	Cached bool
	// Quiet is the rest of the store's quiet time, if no session is known to hold the lock.
	Quiet time.Duration
}

func (e *HeldError) Error() string {
	if e.Quiet > 0 {
		return fmt.Sprintf("lock %q is not granted: %v", e.Lock.Key, &QuietError{Left: e.Quiet})
	}
	return fmt.Sprintf("lock %q is held", e.Lock.Key)
}

// SkippedError: the request waited with Skip, and the holder released with [store.Success], so the work is done.
type SkippedError struct {
	Key string
	// Result is JSON from the holder's release, or nil.
	Result []byte
}

func (e *SkippedError) Error() string {
	return fmt.Sprintf("lock %q: its holder has done it", e.Key)
}

// NotHeldError: the lock has no holder, or its holder has another token than the call names.
type NotHeldError struct {
	Key   string
	Token int64 // 0: the call named no token
}

func (e *NotHeldError) Error() string {
	if e.Token != 0 {
		return fmt.Sprintf("lock %q is not held under token %d", e.Key, e.Token)
	}
	return fmt.Sprintf("lock %q is not held", e.Key)
}

// ReentryError: a release named another number of entries than the lock has. If it named a higher one, that
// entry was released already.
type ReentryError struct {
	Key         string
	Given, Have int
}

func (e *ReentryError) Error() string {
	return fmt.Sprintf("lock %q is entered %d times, not %d", e.Key, e.Have, e.Given)
}

// LimitMismatchError: the shared holders or waiters of the key name another limit than the request.
type LimitMismatchError struct {
	Key string
	// Limit is the limit of the holders or waiters, 0 for none. Given is that of the request.
	Limit, Given int
}

func (e *LimitMismatchError) Error() string {
	return fmt.Sprintf("lock %q is shared now by holders or waiters that name %s, and this call names %s: name the same, or wait until nobody holds the key or waits for it", e.Key, limitName(e.Limit), limitName(e.Given))
}

func limitName(limit int) string {
	if limit == 0 {
		return "no limit"
	}
	return fmt.Sprintf("the limit %d", limit)
}

// TimeoutError: the wait was over before the lock was granted.
type TimeoutError struct {
	// Lock is who holds the key now, if that was asked or is known here, otherwise what the store last said, Age ago. Its times
	// are those of now.
	Lock store.Lock
	Age  time.Duration
	// Position is the last known queue position, 1 for the first.
	Position int
	Waited   time.Duration
	// Quiet is the rest of the store's quiet time, if no session is known to hold the lock.
	Quiet time.Duration
}

func (e *TimeoutError) Error() string {
	text := fmt.Sprintf("lock %q: waited %s in vain", e.Lock.Key, e.Waited.Round(time.Millisecond))
	if e.Quiet > 0 {
		text += fmt.Sprintf(": %v", &QuietError{Left: e.Quiet})
	}
	return text
}

// LostError: the lock was held under this token, and was lost.
type LostError struct{ Lost Lost }

func (e *LostError) Error() string {
	return fmt.Sprintf("lock %q was lost: %s", e.Lost.Key, e.Lost.Reason)
}

// NotHolderReason says why a claim was refused. The values are those of the API.
type NotHolderReason string

// The reasons for which a claim can be refused.
const (
	ReasonOtherSession NotHolderReason = "other_session"
	ReasonReleased     NotHolderReason = "released"
	ReasonUnknownToken NotHolderReason = "unknown_token"
)

// NotHolderError: the claimed lock is not held by the claimant under this token.
type NotHolderError struct {
	Key    string
	Token  int64
	Reason NotHolderReason
}

func (e *NotHolderError) Error() string {
	return fmt.Sprintf("lock %q is not held here under token %d: %s", e.Key, e.Token, e.Reason)
}

// InvalidError: the request does not fit what the session holds.
type InvalidError struct {
	// Of is the wrong part of the request, such as "field keys".
	Of, Text string
}

func (e *InvalidError) Error() string { return e.Text }

// Invalidf returns an [InvalidError].
func Invalidf(of, format string, args ...any) error {
	return &InvalidError{of, fmt.Sprintf(format, args...)}
}

// LimitError: one of the configured limits is reached.
type LimitError struct {
	// The field What names the limited things.
	What string
	// Setting is the environment variable that sets it, empty if it is fixed.
	Setting string
	Limit   int
}

func (e *LimitError) Error() string {
	if e.Setting == "" {
		return fmt.Sprintf("too many %s: the limit is %d", e.What, e.Limit)
	}
	return fmt.Sprintf("too many %s: %s is %d", e.What, e.Setting, e.Limit)
}

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
