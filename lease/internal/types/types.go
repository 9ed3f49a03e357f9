// Package types contains the requests and results of package lease, its errors and its configuration. All
// rooms of lease use them. Package lease exports them.
package types

import (
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/beat"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/repeat"
	"github.com/locksidecar/locksidecar/store"
)

// Bind says when a lock ends without a release.
type Bind uint8

const (
	// BindSession: the lock ends with the session that acquired it.
	BindSession Bind = iota
	// BindTTL: the lock does not belong to a session. It ends after its TTL, or when a caller with its key
	// and token releases it.
	BindTTL
)

func (b Bind) String() string {
	if b == BindTTL {
		return "ttl"
	}
	return "session"
}

// WaitForever as a Request's Wait lasts until the session or the call ends.
const WaitForever time.Duration = -1

// Request asks for one lock. The caller has checked the value ranges.
type Request struct {
	Key string
	// Wait limits the time in the queue. 0 means to try once; see also [WaitForever].
	Wait time.Duration
	// TTL is how long the lock outlives a dead sidecar, or with BindTTL how long it lasts. Zero means the
	// session's default.
	TTL  time.Duration
	Bind Bind
	// Shared asks for a share: shared holders do not exclude each other. Not with Reentrant and Skip.
	Shared bool
	// Limit above zero is for a Shared request. It limits the number of holders at a time.
	Limit int
	// Data is JSON that others see as part of the holder; nil for none.
	Data []byte
	// RequestID makes a request repeatable: while the grant is held, the same id gets the same grant. Only
	// its session finds a session's lock. A repeat's other fields, except the key and Wait, are ignored.
	// [uuid.Nil] for none.
	RequestID uuid.UUID
	// Owner names a part of the session (a thread, a workflow instance). It is shown with the holder. Empty
	// for none. Not with BindTTL.
	Owner string
	// Reentrant lets the Owner enter again, without waiting, a lock that it holds in this session. Needs an Owner.
	Reentrant bool
	// MaxHold above zero: after this time from the grant, the lock is released and lost. Not with BindTTL.
	MaxHold time.Duration
	// MinHold above zero: during this time from the grant, the lock is not granted to others.
	MinHold time.Duration
	// Skip: if the holder releases with [store.Success], the call gets the result ([SkippedError]) instead of
	// the lock.
	Skip bool
	// NoCache asks the store even if the local cache has an answer.
	NoCache bool
	// Traceparent is the W3C trace context of the call, or empty. Others see it with the holder, and log
	// lines name its trace.
	Traceparent string
}

// Mode is the requested mode, as in the API.
func (r *Request) Mode() string { return observe.Mode(r.Shared) }

// Grant is a lock that the caller holds.
type Grant struct {
	Key   string
	Token int64
	// Session is the public name of the session, empty with BindTTL.
	Session string
	Bind    Bind
	// ExpiresIn is how long the caller may rely on the lock if the store does not answer from now on. It ends
	// with a margin before the store's own end, also with BindTTL. The caller may count Waited and ExpiresIn
	// from the beginning of its call.
	ExpiresIn  time.Duration
	Waited     time.Duration
	AcquiredAt time.Time
	// Reentry is how often its owner has entered the lock, 1 for the first time.
	Reentry int
	// Shared: the grant is a share. If the key has a Limit (otherwise zero), Slot is a number from 0 to
	// Limit-1 that no other holder has.
	Shared      bool
	Limit, Slot int
	// Stopping is set when the holder was asked to stop (Amend).
	Stopping *store.Stopping

	// Entry is the serial of a session's entry. Repeats are the calls with the same request id (BindTTL).
	// Only a hand-back uses them.
	Entry   int
	Repeats *repeat.Request
}

// ReleaseRequest releases a lock, or one entry of a lock that its owner has entered more than once.
type ReleaseRequest struct {
	Key   string
	Token int64
	// RequestID, if not zero, names what is released. With a Token it is the entry that this request made.
	// Without one it is everything that requests with this id have got in the session, or with BindTTL.
	RequestID uuid.UUID
	// Reentry, if not zero, must be the present number of entries. So a repeated request does not end two entries.
	Reentry int
	// Outcome and Result (JSON, or nil) are sent to waiters and watchers when the lock is released.
	Outcome store.ReleaseOutcome
	Result  []byte
	// Traceparent is the W3C trace context of the call, or empty. The next holder gets it, and log lines name
	// its trace.
	Traceparent string
}

// Released is the result of a release.
type Released struct {
	Key string
	// Reentry is how often the lock is still entered; 0 means that it is released.
	Reentry int
	// Nothing: the RequestID had no lock.
	Nothing bool
	// HeldFor is how long the lock was held.
	HeldFor time.Duration
}

// AmendRequest checks a grant, and changes it if requested.
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

// View is the state of a key, seen from a session.
type View struct {
	store.Lock
	// Mine: the session of the call holds the lock, or a share of it. Then Lock.Token is the token of the
	// session, with several shares the first. Otherwise the token must not be shown.
	Mine bool
	// Cached: the store was not asked. QueueLength counts only the calls of this sidecar.
	Cached bool
}

// Scope selects the locks of a list.
type Scope uint8

const (
	// ScopeAll lists all locks of the namespace.
	ScopeAll Scope = iota
	// ScopePod lists locks granted by this sidecar.
	ScopePod
	// ScopeSession lists the locks of the asking session.
	ScopeSession
)

// ListRequest selects held locks, ordered by the bytes of their keys.
type ListRequest struct {
	// Namespace is another namespace than the sidecar's own. Empty: its own.
	Namespace string
	// Scope is [ScopeAll] for another namespace.
	Scope  Scope
	Prefix string
	// After selects keys after this one: the last key of the previous page.
	After string
	// Limit is the greatest number of locks to return.
	Limit int
}

// Page is a part of a list.
type Page struct {
	Locks []View
	// Next is the After of the following page, empty on the last page.
	Next string
}

// WaitersRequest selects waiting calls, ordered by the bytes of their keys and by queue position.
type WaitersRequest = store.WaitQuery

// WaitersPage is a part of a list of waiting calls.
type WaitersPage struct {
	Waiting []store.Waiting
	// Next is the After of the following page, zero on the last page.
	Next store.QueuePlace
}

// Lost notifies a session that it no longer holds a lock.
type Lost struct {
	Key    string
	Token  int64
	Reason LostReason
}

// Stop asks a session to stop its work under a lock, and to release it.
type Stop struct {
	Key    string
	Token  int64
	Reason *string // nil: no reason was given
}

// LostReason says why a lock was lost. The values are those of the API.
type LostReason string

// The reasons for which a lock can be lost.
const (
	// LostExpired: its time was over, by the clock of the sidecar that held it.
	LostExpired LostReason = "expired"
	// LostStore: the store did not confirm the renewals in time, or it does not know the lock or its lease any more: it forgot them in a failover, or
	// somebody deleted them.
	LostStore LostReason = "store_lost"
	// LostDisconnected: the session's connection dropped.
	LostDisconnected LostReason = "disconnected"
	// LostMaxHold: the lock was held for its MaxHold.
	LostMaxHold LostReason = "max_hold"
	// LostForced: the lock was broken.
	LostForced LostReason = "forced"
	// LostShutdown: the sidecar shut down.
	LostShutdown LostReason = "shutdown"
)

// SessionOptions describe a session to be opened.
type SessionOptions struct {
	// Name is shown to others as the holder's session. Empty means a short random id.
	Name string
	// TTL is the default for the session's locks. Zero means the configured one.
	TTL time.Duration
	// Explicit sessions can be joined from other connections by their ID.
	Explicit bool
	// OnLost is called with each lost lock, in the order of the losses. It must not block and must not call
	// the Manager. It may be nil.
	OnLost func(Lost)
	// OnStop is called when the holder is asked to stop. The same rules apply.
	OnStop func(Stop)
	// OnEnd is called once, when the session has ended, with the reason. The same rules apply.
	OnEnd func(EndReason)
	// Reach is for how long the app may rely on the session's locks if nothing comes from it any more, because its connection may break
	// without a sign. nil: the connection shows its end at once. Any goroutine may call it.
	Reach func() time.Duration
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

// Config configures the Manager of package lease. All fields up to Logger are required.
type Config struct {
	// Instance and Pod name this sidecar; others see them in the holder.
	Instance, Pod string
	// TTL is the default of a lock. RenewInterval is the longest time between two renewals of a lease. A
	// lease with a short TTL is renewed every TTL/3.
	TTL, RenewInterval time.Duration
	// StoreTimeout limits one operation of the store.
	StoreTimeout time.Duration
	// PollInterval is how often waits are checked while the store cannot push news.
	PollInterval time.Duration
	// CacheSize and CacheTTL limit the held cache. CacheTTL 0 turns it off.
	CacheSize int
	CacheTTL  time.Duration
	// Keep is how long a key stays with this instance after its last use here. 0: no key is kept.
	Keep time.Duration
	// MaxKept is how many keys this instance remembers at most because it keeps them, or may do so next time; 0: about 16,000.
	MaxKept int
	// BatchMax limits the items in one operation of the store.
	BatchMax int

	MaxSessions, MaxLocksPerSession, MaxWaiters int

	// Probes: readiness needs a lock that the store has granted: see package readiness. Otherwise the store's own word suffices.
	Probes bool

	// Beat, if not nil, is shared by the managers of a process: they renew their leases at the same time.
	Beat *beat.Beat

	Logger *slog.Logger
	// Clock is the source of time; nil: the machine's clocks.
	Clock clock.Clock
	// Tracer makes spans, Metrics counts. Either may be nil.
	Tracer  *observe.Tracer
	Metrics observe.Recorder
}

// Closed reports whether a channel is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
