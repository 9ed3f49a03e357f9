package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// The codes of the contract: what a client may rely on.
const (
	codeInvalidRequest   = "invalid_request"
	codeForbidden        = "forbidden"
	codeNotFound         = "not_found"
	codeNotHeld          = "not_held"
	codeMethodNotAllowed = "method_not_allowed"
	codeRequestTimeout   = "request_timeout"
	codeNotHolder        = "not_holder"
	codeWithdrawn        = "withdrawn"
	codeLockLost         = "lock_lost"
	codeSessionEnded     = "session_ended"
	codeTooLarge         = "too_large"
	codeHeld             = "held"
	codeWaitTimeout      = "wait_timeout"
	codeLimit            = "limit"
	codeHeadTooLarge     = "head_too_large"
	codeInternal         = "internal"
	codeStoreUnavailable = "store_unavailable"
	codeDraining         = "draining"
)

// problems is the whole table: what each code looks like on the wire.
var problems = map[string]struct {
	status int
	title  string
	// retry: the answer has Retry-After.
	retry bool
}{
	codeInvalidRequest:   {400, "The request is not valid", false},
	codeForbidden:        {403, "Not allowed", false},
	codeNotFound:         {404, "No such resource", false},
	codeNotHeld:          {404, "Nobody holds the lock", false},
	codeMethodNotAllowed: {405, "This resource does not know the method", false},
	codeRequestTimeout:   {408, "The request took too long to arrive", false},
	codeNotHolder:        {409, "The lock is not held under this token", false},
	codeWithdrawn:        {409, "The request was released before it was granted", false},
	codeLockLost:         {410, "The lock was lost", false},
	codeSessionEnded:     {410, "The session has ended", false},
	codeTooLarge:         {413, "Too large", false},
	codeHeld:             {423, "The lock is held", false},
	codeWaitTimeout:      {423, "Waited in vain for the lock", false},
	codeLimit:            {429, "A limit is reached", true},
	codeHeadTooLarge:     {431, "The request's head is too large", false},
	codeInternal:         {500, "Internal error", false},
	codeStoreUnavailable: {503, "The lock store cannot be used now", true},
	codeDraining:         {503, "The sidecar is shutting down", false},
}

// retryAfter is the Retry-After of answers that have it, in seconds.
const retryAfter = "1"

// problem is an error answer (RFC 9457).
type problem struct {
	code, detail string
	// allow is the Allow header of a method_not_allowed.
	allow string
	// refusal: this package does not allow the call, which an operator should know.
	refusal bool
	// more appends the code's own members, each with a comma before it.
	more func(b []byte) []byte
}

func (p *problem) status() int { return problems[p.code].status }

// problemTypes is where people read of a problem: each code has a section of its name.
const problemTypes = "https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md#"

// append appends the problem as JSON.
func (p *problem) append(b []byte) []byte {
	entry := problems[p.code]
	b = append(b, `{"type":"`+problemTypes...)
	b = append(b, p.code...)
	b = append(b, `","title":`...)
	b = appendString(b, entry.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(entry.status), 10)
	b = append(b, `,"code":"`...)
	b = append(b, p.code...)
	b = append(b, `","detail":`...)
	b = appendString(b, p.detail)
	if p.more != nil {
		b = p.more(b)
	}
	return append(b, '}')
}

func invalid(format string, args ...any) *problem {
	return &problem{code: codeInvalidRequest, detail: fmt.Sprintf(format, args...)}
}

func notFound(detail string) *problem  { return &problem{code: codeNotFound, detail: detail} }
func forbidden(detail string) *problem { return &problem{code: codeForbidden, detail: detail} }
func tooLarge(detail string) *problem  { return &problem{code: codeTooLarge, detail: detail} }

func limitReached(detail string) *problem { return &problem{code: codeLimit, detail: detail} }

func methodNotAllowed(allow, detail string) *problem {
	return &problem{code: codeMethodNotAllowed, allow: allow, detail: detail}
}

func sessionEnded(detail string) *problem {
	return &problem{code: codeSessionEnded, detail: detail}
}

// internal is the answer to a call in which something panicked.
func internal() *problem {
	return &problem{code: codeInternal, detail: "this call met a bug of the sidecar, which has logged it"}
}

// withKey adds the member "key" when one of several locks was not to be had.
func (p *problem) withKey(err error) *problem {
	var lock store.Lock
	if held, ok := errors.AsType[*lease.HeldError](err); ok {
		lock = held.Lock
	} else if timeout, ok := errors.AsType[*lease.TimeoutError](err); ok {
		lock = timeout.Lock
	} else {
		return p
	}
	more := p.more
	p.more = func(b []byte) []byte {
		b = append(b, `,"key":`...)
		return more(appendString(b, lock.Key))
	}
	return p
}

// withReason adds the member "reason".
func withReason(reason string) func([]byte) []byte {
	return func(b []byte) []byte {
		b = append(b, `,"reason":`...)
		return appendString(b, reason)
	}
}

// problemOf translates the errors of package lease. It returns nil for one that
// it does not know.
func problemOf(err error) *problem {
	var (
		held      *lease.HeldError
		timeout   *lease.TimeoutError
		notHolder *lease.NotHolderError
		lost      *lease.LostError
		limit     *lease.LimitError
		onSession *lease.TTLOnSessionError
		notHeld   *lease.NotHeldError
		holds     *lease.HoldsError
		reentry   *lease.ReentryError
	)
	switch {
	case errors.As(err, &held):
		return heldProblem(held)
	case errors.As(err, &timeout):
		return timeoutProblem(timeout)
	case errors.As(err, &notHolder):
		return &problem{code: codeNotHolder, detail: notHolder.Error(), more: withReason(string(notHolder.Reason))}
	case errors.As(err, &lost):
		return &problem{code: codeLockLost, detail: lost.Error(), more: withReason(string(lost.Lost.Reason))}
	case errors.As(err, &limit):
		return limitReached(limit.Error())
	case errors.As(err, &onSession):
		return invalid("field ttl_ms: %v", onSession)
	case errors.As(err, &notHeld):
		return &problem{code: codeNotHeld, detail: notHeld.Error()}
	case errors.As(err, &holds):
		return invalid("field keys: %v", holds)
	case errors.As(err, &reentry):
		return reentryProblem(reentry)
	case errors.Is(err, lease.ErrSessionEnded):
		return sessionEnded("the session of this call has ended: its locks are released, open another one")
	case errors.Is(err, lease.ErrWithdrawn):
		return &problem{code: codeWithdrawn, detail: "another call has released what this one would have got, by its request_id"}
	case errors.Is(err, lease.ErrDraining):
		return &problem{code: codeDraining, detail: "the sidecar is shutting down: releases still work, acquires do not"}
	case errors.Is(err, lease.ErrCallerLeft), errors.Is(err, context.Canceled):
		return sessionEnded("the connection was closed by its client, and its session with it")
	case store.Unavailable(err):
		return &problem{code: codeStoreUnavailable, detail: "nothing was granted, or it is undone by itself: " + err.Error()}
	}
	return nil
}

// reentryProblem refuses the release of an entry that is not the last. One that was
// released already is not held any more; a lower one cannot be released before the
// others are.
func reentryProblem(e *lease.ReentryError) *problem {
	count := func(b []byte) []byte {
		return strconv.AppendInt(append(b, `,"reentry":`...), int64(e.Have), 10)
	}
	if e.Given <= e.Have {
		p := invalid("reentry is %d: %v", e.Given, e)
		p.more = count
		return p
	}
	reason := withReason(string(lease.ReasonReleased))
	return &problem{
		code: codeNotHolder, detail: "this entry was released already: " + e.Error(),
		more: func(b []byte) []byte { return count(reason(b)) },
	}
}

func heldProblem(e *lease.HeldError) *problem {
	return &problem{code: codeHeld, detail: e.Error() + ", and wait_ms is 0", more: func(b []byte) []byte {
		b = append(b, `,"holder":`...)
		b = appendHolder(b, &e.Lock)
		b = append(b, `,"queue_length":`...)
		b = strconv.AppendInt(b, int64(e.Lock.QueueLength), 10)
		return strconv.AppendBool(append(b, `,"cached":`...), e.Cached)
	}}
}

func timeoutProblem(e *lease.TimeoutError) *problem {
	return &problem{code: codeWaitTimeout, detail: e.Error(), more: func(b []byte) []byte {
		b = append(b, `,"holder":`...)
		b = appendHolder(b, &e.Lock)
		b = append(b, `,"queue_position":`...)
		b = strconv.AppendInt(b, int64(e.Position), 10)
		b = append(b, `,"waited_ms":`...)
		return appendMillis(b, e.Waited)
	}}
}

// badRequest translates the errors with which fasthttp gives up a request.
func badRequest(c *conn, err error) *problem {
	var head *fasthttp.ErrSmallBuffer
	switch {
	case c.timedOut:
		return &problem{code: codeRequestTimeout, detail: fmt.Sprintf(
			"the request was not complete after %s", c.srv.cfg.Timeouts.Request)}
	case errors.As(err, &head):
		return &problem{code: codeHeadTooLarge, detail: fmt.Sprintf(
			"request line and headers have more than %d bytes", maxHead)}
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return tooLarge(fmt.Sprintf("the body has more than %d bytes (LOCKSIDECAR_MAX_BODY)", c.srv.cfg.MaxBody))
	}
	return invalid("the request is not well-formed HTTP/1.1: %s", unquoted(err))
}

// unquoted is an error of fasthttp up to what it quotes: that is all that has arrived,
// with the id of a session in its head, and other requests behind it.
func unquoted(err error) string {
	text, _, _ := strings.Cut(err.Error(), `"`)
	return strings.TrimRight(strings.TrimSuffix(text, " in "), ": ")
}
