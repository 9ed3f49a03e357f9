package types

import (
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

var (
	// ErrSessionEnded: the session of the call is over (or never was).
	ErrSessionEnded = errors.New("the session has ended")
	// ErrDraining: the sidecar shuts down; releases still work.
	ErrDraining = errors.New("the sidecar is shutting down")
	// ErrCallerLeft: the call's own context ended before its outcome was known. A grant that
	// arrives later is released.
	ErrCallerLeft = errors.New("the caller has gone")
	// ErrWithdrawn: the call was ended by a release that names its request id.
	ErrWithdrawn = errors.New("the request was released by its request_id before it was granted")
)

// ErrRowLocked: another session kept the key's row locked until the store's timeout.
var ErrRowLocked = errors.New("somebody keeps the row of this key locked")

// RowLocked is the error of an operation that did nothing because of a locked row. Nothing has to
// be withdrawn, and a later try may succeed.
func RowLocked(op string) error { return &store.Error{Op: op, Err: ErrRowLocked} }

// QuietError: after a failover, the store grants nothing for this time.
type QuietError struct{ Left time.Duration }

func (e *QuietError) Error() string {
	return fmt.Sprintf("after a failover of the store, nothing is granted for %s, because grants may have been forgotten", e.Left.Round(time.Millisecond))
}

// Quiet is the error of an acquire in a quiet time. A later try may succeed.
func Quiet(left time.Duration) error { return &store.Error{Op: "acquire", Err: &QuietError{left}} }

// Judged returns err, or an error if the claim's row was locked.
func Judged(op string, standing store.ClaimStatus, err error) error {
	if err == nil && standing == store.ClaimRowLocked {
		return RowLocked(op)
	}
	return err
}

// HeldError: somebody else holds the lock, and the request did not want to wait.
type HeldError struct {
	Lock store.Lock
	// Cached: the answer came from the local cache. Lock.QueueLength may count only the calls that
	// wait through this sidecar.
	Cached bool
}

func (e *HeldError) Error() string { return fmt.Sprintf("lock %q is held", e.Lock.Key) }

// SkippedError: the request waited with Skip, and the holder released with [store.Success], so the
// work is done.
type SkippedError struct {
	Key string
	// Result is JSON from the holder's release, or nil.
	Result []byte
}

func (e *SkippedError) Error() string {
	return fmt.Sprintf("lock %q: its holder has done it", e.Key)
}

// NotHeldError: nobody holds the lock, or its holder has another token than the call names.
type NotHeldError struct {
	Key   string
	Token int64 // 0: none was named
}

func (e *NotHeldError) Error() string {
	if e.Token != 0 {
		return fmt.Sprintf("lock %q is not held under token %d", e.Key, e.Token)
	}
	return fmt.Sprintf("lock %q is not held by anybody", e.Key)
}

// ReentryError: a release named another number of entries than the lock has. If it is higher, that
// entry was released already.
type ReentryError struct {
	Key         string
	Given, Have int
}

func (e *ReentryError) Error() string {
	return fmt.Sprintf("lock %q is entered %d times, not %d", e.Key, e.Have, e.Given)
}

// HoldsError: a request for several keys names one that the session holds already.
type HoldsError struct{ Key string }

func (e *HoldsError) Error() string {
	return fmt.Sprintf("lock %q is held by this session already", e.Key)
}

// LimitMismatchError: the shared holders or waiters of the key name another limit than the request.
type LimitMismatchError struct {
	Key string
	// Limit is theirs, 0 for none; Given is that of the request.
	Limit, Given int
}

func (e *LimitMismatchError) Error() string {
	return fmt.Sprintf("lock %q is shared now by holders or waiters that name %s, not %s", e.Key, limitName(e.Limit), limitName(e.Given))
}

func limitName(limit int) string {
	if limit == 0 {
		return "no limit"
	}
	return fmt.Sprintf("the limit %d", limit)
}

// OwnKeyError: the request would wait for a key that its own session holds, and only its own connection
// could release.
type OwnKeyError struct {
	Key string
	// Upgrade: the session has a share, and asks for the exclusive lock.
	Upgrade bool
}

func (e *OwnKeyError) Error() string {
	if e.Upgrade {
		return fmt.Sprintf("lock %q: this session has a share of it, which cannot become exclusive; release it and acquire", e.Key)
	}
	return fmt.Sprintf("lock %q is held by this session, which would wait for itself; release it first", e.Key)
}

// EnteredError: a lock that is entered more than once cannot become a share.
type EnteredError struct {
	Key     string
	Entries int
}

func (e *EnteredError) Error() string {
	return fmt.Sprintf("lock %q is entered %d times; only a lock that is entered once can become shared", e.Key, e.Entries)
}

// ShareOutcomeError: the release of a share names an outcome, which is for exclusive locks.
type ShareOutcomeError struct{ Key string }

func (e *ShareOutcomeError) Error() string {
	return fmt.Sprintf("lock %q is shared: its release has no outcome", e.Key)
}

// TimeoutError: the request waited in vain.
type TimeoutError struct {
	Lock store.Lock
	// Position is the last known queue position, 1 for the first.
	Position int
	Waited   time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("lock %q: waited %s in vain", e.Lock.Key, e.Waited.Round(time.Millisecond))
}

// LostError: the lock was held under this token, and was lost.
type LostError struct{ Lost Lost }

func (e *LostError) Error() string {
	return fmt.Sprintf("lock %q was lost: %s", e.Lost.Key, e.Lost.Reason)
}

// NotHolderReason says why a claim was refused. The values are those of the wire.
type NotHolderReason string

// The reasons of the contract for which a claim can be refused.
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

// TTLOnSessionError: an AmendRequest sets the TTL of a session's lock, which is renewed as long as
// the session lives.
type TTLOnSessionError struct{ Key string }

func (e *TTLOnSessionError) Error() string {
	return fmt.Sprintf("lock %q belongs to a session: ttl_ms can only be set for bind:ttl locks", e.Key)
}

// LimitError: one of the configured limits is reached.
type LimitError struct {
	// What is limited, in words.
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
