// Package types has the values that calls pass to package lease and get from it, its errors and its
// configuration. All rooms of lease use them, so they import no room above the observer's. Package
// lease exports them.
package types

import (
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/store"
)

// Bind says what a lock's life depends on.
type Bind uint8

const (
	// BindSession: the lock ends with the session that acquired it.
	BindSession Bind = iota
	// BindTTL: the lock belongs to no session. It ends after its TTL, or when somebody with its key
	// and token releases it.
	BindTTL
)

func (b Bind) String() string {
	if b == BindTTL {
		return "ttl"
	}
	return "session"
}

// WaitForever as a Request's Wait: until the session or the call ends.
const WaitForever time.Duration = -1

// Request asks for one lock. The caller has checked the ranges of the contract.
type Request struct {
	Key string
	// Wait is the longest time in the queue. 0 tries once; see also [WaitForever].
	Wait time.Duration
	// TTL is how long the lock outlives a dead sidecar, or with BindTTL how long it lasts. Zero:
	// the session's default.
	TTL  time.Duration
	Bind Bind
	// Shared asks for a share: shared holders do not exclude each other. Not with Reentrant and Skip.
	Shared bool
	// Limit above zero is for a Shared request: at most so many holders have the key at a time.
	Limit int
	// Data is JSON that others see as part of the holder; nil for none.
	Data []byte
	// RequestID makes a request repeatable: while the grant is held, the same id gets the same
	// grant. A session's lock is found only from its session. A repeat's other fields, except the
	// key and Wait, are ignored. [uuid.Nil] for none.
	RequestID uuid.UUID
	// Owner is who in the session asks (a thread, a workflow instance), shown with the holder;
	// empty for none. Not with BindTTL.
	Owner string
	// Reentrant lets the Owner enter again, without waiting, a lock that it holds in this session.
	// Needs an Owner.
	Reentrant bool
	// MaxHold above zero: so long after the grant, the lock is released and lost. Not with BindTTL.
	MaxHold time.Duration
	// MinHold above zero: for so long after the grant, nobody else gets the lock.
	MinHold time.Duration
	// Skip: if the holder releases with [store.Success], the call gets the result ([SkippedError]),
	// not the lock.
	Skip bool
	// NoCache asks the store even where the local cache knows an answer.
	NoCache bool
	// Traceparent is the W3C trace context of the call, or empty. Answers to others show it with
	// the holder, and the log names its trace.
	Traceparent string
}

// Mode is what the request asks for, in the words of the contract.
func (r *Request) Mode() string { return observe.Mode(r.Shared) }

// SharesGrant reports whether repeats of the request, at any sidecar, have the same attempt id.
// Repeats in a session need not: it knows what it holds.
func (r *Request) SharesGrant() bool { return r.Bind == BindTTL && r.RequestID != uuid.Nil }

// Grant is a lock that the caller holds.
type Grant struct {
	Key   string
	Token int64
	// Session is the public name of the session, empty with BindTTL.
	Session string
	Bind    Bind
	// ExpiresIn is how long the caller may rely on it if nothing is heard of the store from now on,
	// with a margin before the store's own end, also with BindTTL. The caller may count Waited and
	// ExpiresIn from the beginning of its call.
	ExpiresIn  time.Duration
	Waited     time.Duration
	AcquiredAt time.Time
	// Reentry is how often its owner has entered it, 1 for the first time.
	Reentry int
	// Shared: it is a share. If the key has a Limit (else zero), Slot is a number from 0 to Limit-1 that no
	// other holder has.
	Shared      bool
	Limit, Slot int
	// Stopping is set when the holder was asked to stop (Amend).
	Stopping *store.Stopping

	// Entry is the serial of a session's entry, Repeats are the calls with the same request id
	// (BindTTL). Only a hand-back uses them.
	Entry   int
	Repeats *repeat.Request
}

// ReleaseRequest releases a lock, or takes one entry off a lock that its owner has entered more than once.
type ReleaseRequest struct {
	Key   string
	Token int64
	// RequestID, if not zero, names what is released: with a Token that entry of the lock, and
	// without one all that requests with this id have got in the session, or with BindTTL.
	RequestID uuid.UUID
	// Reentry, if not zero, must be how often the lock is entered now: so a repeated request does
	// not take two entries off.
	Reentry int
	// Outcome and Result (JSON, or nil) are told to those who wait and watch, when the lock is released.
	Outcome store.ReleaseOutcome
	Result  []byte
	// Traceparent is the W3C trace context of the call, or empty: who gets the lock by it is told,
	// and the log names its trace.
	Traceparent string
}

// Released tells of a release.
type Released struct {
	Key string
	// Reentry is how often the lock is still entered; 0: it is released.
	Reentry int
	// Nothing was held under the RequestID.
	Nothing bool
	// HeldFor is how long the lock was held.
	HeldFor time.Duration
}

// AmendRequest checks a grant, and changes it where asked.
type AmendRequest struct {
	Key   string
	Token int64
	// TTL above zero sets the remaining time of a BindTTL lock.
	TTL time.Duration
	// Share turns an exclusive lock into a share, which keeps its token.
	Share bool
	// SetData replaces the data by Data; nil removes it.
	SetData bool
	Data    []byte
	// Traceparent is the W3C trace context of the call, or empty, for the log.
	Traceparent string
}

// View is what is known of a key, seen from a session.
type View struct {
	store.Lock
	// Mine: the session that looks holds it, or a share of it. Then Lock.Token is that of the session, of
	// several shares the first; else it is not to be shown.
	Mine bool
	// Cached: the store was not asked. QueueLength counts only the calls of this sidecar.
	Cached bool
}

// Scope limits a list.
type Scope uint8

const (
	// ScopePod lists locks granted by this sidecar.
	ScopePod Scope = iota
	// ScopeSession lists the locks of the asking session.
	ScopeSession
	// ScopeAll lists all locks of the namespace.
	ScopeAll
)

// ListRequest selects held locks, ordered by the bytes of their keys.
type ListRequest struct {
	Scope  Scope
	Prefix string
	// After limits to keys behind this one: the last key of the page before.
	After string
	// Limit is the most locks to return.
	Limit int
}

// Page is a part of a list.
type Page struct {
	Locks []View
	// Next is the After of the following page, empty when this is the last.
	Next string
}

// WaitersRequest selects waiting calls, ordered by the bytes of their keys and by queue position.
type WaitersRequest struct {
	// Key limits to one key; empty: all.
	Key string
	// Prefix limits to keys that begin with it.
	Prefix string
	// After limits to those behind this place: the last one of the page before.
	After store.QueuePlace
	// Limit is the most to return.
	Limit int
}

// WaitersPage is a part of a list of waiting calls.
type WaitersPage struct {
	Waiting []store.Waiting
	// Next is the After of the following page, zero when this is the last.
	Next store.QueuePlace
}

// Lost tells a session that it no longer holds a lock.
type Lost struct {
	Key    string
	Token  int64
	Reason LostReason
}

// Stop asks a session to stop what it does under a lock, and to release it.
type Stop struct {
	Key    string
	Token  int64
	Reason *string // nil: none was given
}

// LostReason says why a lock was lost. The values are those of the wire.
type LostReason string

// The reasons of the contract for which a lock can be lost.
const (
	// LostExpired: the lease ended before it was renewed.
	LostExpired LostReason = "expired"
	// LostStore: the store did not take the renewals, or has forgotten the lock in a failover.
	LostStore LostReason = "store_lost"
	// LostDisconnected: the session's connection dropped.
	LostDisconnected LostReason = "disconnected"
	// LostMaxHold: it was held for as long as its MaxHold allows.
	LostMaxHold LostReason = "max_hold"
	// LostForced: somebody broke it.
	LostForced LostReason = "forced"
	// LostShutdown: the sidecar shut down.
	LostShutdown LostReason = "shutdown"
)

// SessionOptions describe a session to be opened.
type SessionOptions struct {
	// Name is shown to others as the holder's session; empty: a short random id.
	Name string
	// TTL is the default for the session's locks; zero: the configured one.
	TTL time.Duration
	// Explicit sessions can be joined from other connections by their ID.
	Explicit bool
	// OnLost hears of lost locks, in the order of the losses. It must not block and must not call
	// back into the Manager. It may be nil.
	OnLost func(Lost)
	// OnStop hears that somebody asks to stop. The same rules.
	OnStop func(Stop)
	// OnEnd hears, once, that the session has ended, and why, whoever ended it. The same rules. It
	// may be nil.
	OnEnd func(EndReason)
}

// EndReason says why a session ended.
type EndReason uint8

const (
	// EndDropped: its connection closed.
	EndDropped EndReason = iota + 1
	// EndDeleted: the app asked for it.
	EndDeleted
	// EndShutdown: the sidecar stops.
	EndShutdown
)
