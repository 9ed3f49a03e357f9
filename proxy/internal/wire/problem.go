package wire

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// The codes of the API, which are stable.
const (
	CodeInvalidRequest   = "invalid_request"
	CodeUnauthorized     = "unauthorized"
	CodeForbidden        = "forbidden"
	CodeNotFound         = "not_found"
	CodeNotHeld          = "not_held"
	CodeMethodNotAllowed = "method_not_allowed"
	CodeRequestTimeout   = "request_timeout"
	CodeNotHolder        = "not_holder"
	CodeWithdrawn        = "withdrawn"
	CodeLimitMismatch    = "limit_mismatch"
	CodeLockLost         = "lock_lost"
	CodeSessionEnded     = "session_ended"
	CodeTooLarge         = "too_large"
	CodeHeld             = "held"
	CodeWaitTimeout      = "wait_timeout"
	CodeLimit            = "limit"
	CodeHeadTooLarge     = "head_too_large"
	CodeInternal         = "internal"
	CodeUnsupported      = "unsupported"
	CodeStoreUnavailable = "store_unavailable"
	CodeDraining         = "draining"
)

// problems defines the status and title of each code.
var problems = map[string]struct {
	status int
	title  string
	// retry: the answer has a Retry-After header.
	retry bool
}{
	CodeInvalidRequest:   {400, "The request is not valid", false},
	CodeUnauthorized:     {401, "The token is missing or wrong", false},
	CodeForbidden:        {403, "Not allowed", false},
	CodeNotFound:         {404, "No such resource", false},
	CodeNotHeld:          {404, "The lock is not held", false},
	CodeMethodNotAllowed: {405, "This resource does not have the method", false},
	CodeRequestTimeout:   {408, "The request took too long to arrive", false},
	CodeNotHolder:        {409, "The lock is not held under this token", false},
	CodeWithdrawn:        {409, "The request was released before it was granted", false},
	CodeLimitMismatch:    {409, "The lock is shared with another limit", false},
	CodeLockLost:         {410, "The lock was lost", false},
	CodeSessionEnded:     {410, "The session has ended", false},
	CodeTooLarge:         {413, "Too large", false},
	CodeHeld:             {423, "The lock is held", false},
	CodeWaitTimeout:      {423, "Waited in vain for the lock", false},
	CodeLimit:            {429, "A limit is reached", true},
	CodeHeadTooLarge:     {431, "The request's head is too large", false},
	CodeInternal:         {500, "Internal error", false},
	CodeUnsupported:      {501, "The lock store cannot do this", false},
	CodeStoreUnavailable: {503, "The lock store cannot be used now", true},
	CodeDraining:         {503, "The sidecar is shutting down", false},
}

// Problem is an error answer (RFC 9457).
type Problem struct {
	Code, Detail string
	// Allow is the Allow header for method_not_allowed.
	Allow string
	// after is the Retry-After; zero means one second.
	after time.Duration
	// Refusal: see [Refusef].
	Refusal bool
	// unavailable: the store failed, so [Problem.Unconfirmed] may say what that means for the call.
	unavailable bool
	// quiet is the rest of a quiet time, or 0, for the codes in mayBeQuiet.
	quiet time.Duration
	// more appends the members of this code.
	more func(object) object
}

// mayBeQuiet are the codes whose answers say whether a quiet time is the reason.
var mayBeQuiet = map[string]bool{CodeHeld: true, CodeWaitTimeout: true, CodeStoreUnavailable: true}

// These say, for each call that changes something, the meaning of a failure of the store: see [Problem.Unconfirmed].
const (
	AcquireUnconfirmed = "nothing was granted, or the sidecar withdraws the grant"
	ReleaseUnconfirmed = "the release is not confirmed, so the lock may stay held until its time ends; repeat the release"
	AmendUnconfirmed   = "the change is not confirmed; repeat it"
	StopUnconfirmed    = "the request to stop is not confirmed; repeat it"
	BreakUnconfirmed   = "the lock may still be held; repeat the call"
)

// Unconfirmed adds to a failure of the store what it means for the call.
func (p *Problem) Unconfirmed(what string) *Problem {
	if p.unavailable {
		p.Detail = what + ": " + p.Detail
	}
	return p
}

// ReasonQuiet is the reason of an answer in a quiet time.
const ReasonQuiet = "quiet"

// withQuiet appends the rest of a quiet time, or null if there is none.
func (o object) withQuiet(left time.Duration) object {
	if left <= 0 {
		return o.null("reason").null("quiet_ms")
	}
	return o.text("reason", ReasonQuiet).number("quiet_ms", max(1, left.Milliseconds()))
}

// Status is the HTTP status of the problem.
func (p *Problem) Status() int { return problems[p.Code].status }

// RetryAfter is the Retry-After of the answer, in seconds; empty if it has none.
func (p *Problem) RetryAfter() string {
	if !problems[p.Code].retry {
		return ""
	}
	return strconv.Itoa(max(1, int((p.after+time.Second-1)/time.Second)))
}

// ProblemTypes is the URL of the documentation of problems. Each code has a section with its name.
const ProblemTypes = "https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md#"

// Append appends the problem as JSON.
func (p *Problem) Append(b []byte) []byte {
	entry := problems[p.Code]
	o := append(open(b).name("type"), `"`+ProblemTypes...)
	o = append(append(o, p.Code...), '"')
	o = o.text("title", entry.title).number("status", int64(entry.status)).text("code", p.Code).text("detail", p.Detail)
	if p.more != nil {
		o = p.more(o)
	}
	if mayBeQuiet[p.Code] {
		o = o.withQuiet(p.quiet)
	}
	return o.end()
}

// Problemf makes a problem. Its code has a status and a title.
func Problemf(code, format string, args ...any) *Problem {
	return &Problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Refusef makes the problem of a call that package proxy refuses, and that is logged for the operator.
func Refusef(code, format string, args ...any) *Problem {
	return &Problem{Code: code, Detail: fmt.Sprintf(format, args...), Refusal: true}
}

// Invalid makes the problem of a wrong request (400).
func Invalid(format string, args ...any) *Problem {
	return Problemf(CodeInvalidRequest, format, args...)
}

// Internal is the answer to a call that panicked.
func Internal() *Problem {
	return Problemf(CodeInternal, "the call failed by a bug of the sidecar; the details are in its log")
}

// WithKey adds the member "key" for the lock that prevented an acquire of several keys.
func (p *Problem) WithKey(err error) *Problem {
	if key := lease.KeyOf(err); key != "" {
		more := p.more
		p.more = func(o object) object {
			if o = o.text("key", key); more != nil {
				o = more(o)
			}
			return o
		}
	}
	return p
}

func mismatchProblem(e *lease.LimitMismatchError) *Problem {
	return &Problem{Code: CodeLimitMismatch, Detail: e.Error(), more: func(o object) object { return o.positive("limit", int64(e.Limit)) }}
}

func withReason(reason string) func(object) object {
	return func(o object) object { return o.text("reason", reason) }
}

// ProblemOf translates the errors of package lease. It returns nil for an unknown error.
func ProblemOf(err error) *Problem {
	var (
		held      *lease.HeldError
		timeout   *lease.TimeoutError
		notHolder *lease.NotHolderError
		lost      *lease.LostError
		limit     *lease.LimitError
		invalid   *lease.InvalidError
		notHeld   *lease.NotHeldError
		reentry   *lease.ReentryError
		quiet     *lease.QuietError
		lacks     *store.UnsupportedError
		mismatch  *lease.LimitMismatchError
	)
	switch {
	case errors.As(err, &held):
		return heldProblem(held)
	case errors.As(err, &timeout):
		return timeoutProblem(timeout)
	case errors.As(err, &notHolder):
		return &Problem{Code: CodeNotHolder, Detail: notHolder.Error(), more: withReason(string(notHolder.Reason))}
	case errors.As(err, &lost):
		return &Problem{Code: CodeLockLost, Detail: lost.Error(), more: withReason(string(lost.Lost.Reason))}
	case errors.As(err, &limit):
		return Problemf(CodeLimit, "%v", limit)
	case errors.As(err, &invalid):
		return Invalid("%s: %v", invalid.Of, invalid)
	case errors.As(err, &notHeld):
		return Problemf(CodeNotHeld, "%v", notHeld)
	case errors.As(err, &reentry):
		return reentryProblem(reentry)
	case errors.As(err, &mismatch):
		return mismatchProblem(mismatch)
	case errors.As(err, &lacks) && lacks.Why != "":
		return Problemf(CodeUnsupported, "%v", lacks)
	case errors.As(err, &lacks):
		return Problemf(CodeUnsupported, "%v: see the features of GET /v1", lacks)
	case errors.Is(err, lease.ErrSessionEnded):
		return Problemf(CodeSessionEnded, "the session of this call has ended: its locks are released, open another one")
	case errors.Is(err, lease.ErrWithdrawn):
		return Problemf(CodeWithdrawn, "another call has released what this one would have got, by its request_id")
	case errors.Is(err, lease.ErrDraining):
		return Problemf(CodeDraining, "the sidecar is shutting down: releases still work, acquires do not")
	case errors.Is(err, lease.ErrCallerLeft): // only this means that the client left: the sidecar's own contexts end, too
		return Problemf(CodeSessionEnded, "the connection was closed by its client, and its session with it")
	case errors.As(err, &quiet):
		return &Problem{Code: CodeStoreUnavailable, Detail: quiet.Error(), after: quiet.Left, quiet: quiet.Left}
	case store.Unavailable(err):
		return &Problem{Code: CodeStoreUnavailable, Detail: fmt.Sprintf("the lock store cannot be used now: %v", err), unavailable: true}
	}
	return nil
}

// reentryProblem refuses the release of an entry that is not the last. A higher number was released already
// (409). For a lower number, later entries must be released first (400).
func reentryProblem(e *lease.ReentryError) *Problem {
	count := func(o object) object { return o.number("reentry", int64(e.Have)) }
	if e.Given <= e.Have {
		p := Invalid("reentry is %d: %v", e.Given, e)
		p.more = count
		return p
	}
	return &Problem{
		Code: CodeNotHolder, Detail: "this entry was released already: " + e.Error(),
		more: func(o object) object { return count(o.text("reason", string(lease.ReasonReleased))) },
	}
}

func heldProblem(e *lease.HeldError) *Problem {
	detail := e.Error()
	if e.Quiet == 0 {
		detail += ", and wait_ms is 0"
	}
	return &Problem{Code: CodeHeld, Detail: detail, more: func(o object) object {
		return o.holders(&e.Lock).number("queue_length", int64(e.Lock.QueueLength)).boolean("cached", e.Cached)
	}, quiet: e.Quiet}
}

func timeoutProblem(e *lease.TimeoutError) *Problem {
	return &Problem{Code: CodeWaitTimeout, Detail: e.Error(), more: func(o object) object {
		return o.holders(&e.Lock).number("queue_position", int64(e.Position)).millis("waited_ms", e.Waited)
	}, quiet: e.Quiet}
}

// SpeaksTLS is the whole answer to a request without TLS on an address that has it.
var SpeaksTLS = func() string {
	body := Invalid("this address speaks TLS: the client's URL must begin with https://").Append(nil)
	return fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}()
