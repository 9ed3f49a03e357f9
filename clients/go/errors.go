package locksidecar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Error is an error of the sidecar or of the client. Its code is stable; those of the sidecar are listed with cause and remedy in
// https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md.
type Error struct {
	// Code is that of the API, or of the client: unreachable, connection_lost, timeout, bad_answer, skipped, unsupported.
	Code string
	// Status is the HTTP status, 0 without an answer.
	Status int
	// Detail is for people.
	Detail string
	// Key is that of the call, or the first of several keys that was not granted. It may be empty.
	Key string
	// Token is that of a lock that was lost. 0: none.
	Token int64
	// Reason says more about some codes: why a lock was lost (expired, forced, max_hold, store_lost, shutdown, disconnected, closed),
	// why a token is not the holder's (other_session, released, unknown_token), that the session was closed by the client (closed), or
	// that the store has its quiet time (quiet).
	Reason string

	// Holder is who holds the lock; nil if it has just become free.
	Holder *Holder
	// Mode, Limit and HoldersCount are those of the holders. Limit is 0 without one.
	Mode         Mode
	Limit        int
	HoldersCount int
	// Kept: the holder's sidecar may keep the lock for its next session, so perhaps nobody holds it now.
	Kept bool
	// Cached: the answer is from the sidecar's memory.
	Cached bool
	// QueueLength is the number of waiting calls, and QueuePosition the last place of this call. 0: unknown.
	QueueLength, QueuePosition int
	// Waited is how long the call has waited.
	Waited time.Duration
	// Reentry is the number of entries, if a release named another one.
	Reentry int
	// RetryAfter is when another try makes sense. 0: unknown.
	RetryAfter time.Duration
	// Quiet is the rest of the store's quiet time after a failover, in which nothing is granted.
	Quiet time.Duration
	// Result is that of the holder which has done the work; only of ErrSkipped.
	Result json.RawMessage
	// Raw is the problem as the API sent it; nil without one.
	Raw json.RawMessage

	cause error
}

// The kinds of errors, for errors.Is.
var (
	// ErrLockHeld: another caller holds the lock. A wait that has ended without the lock is ErrWaitTimeout, and this as well.
	ErrLockHeld    = kind("the lock is held", "held", "wait_timeout")
	ErrWaitTimeout = kind("the wait ended without the lock", "wait_timeout")
	// ErrLockLost: the lock was held under this token, and is lost. Stop the work under it.
	ErrLockLost = kind("the lock is lost", "lock_lost")
	// ErrSkipped: the holder has done the work, and the call wanted only the result: SkipIfDone. It is no failure.
	ErrSkipped = kind("the holder has done the work", "skipped")
	// ErrLimitReached: the sidecar or the store has a limit of sessions, locks, waiting calls or connections.
	ErrLimitReached = kind("a limit is reached", "limit")
	// ErrLimitMismatch: the holders of a semaphore name another limit.
	ErrLimitMismatch = kind("the limit is another one", "limit_mismatch")
	// ErrUnavailable: the sidecar does not answer or stops, or its store is away. The outcome may be unknown.
	ErrUnavailable = kind("the sidecar or its store is not available", "unreachable", "connection_lost", "timeout", "store_unavailable", "draining")
	// ErrUnsupported: the sidecar is older than what was asked for, or may not do it. Nothing was done.
	ErrUnsupported = kind("the sidecar does not support this", "unsupported")
	// ErrNotHolder: the token does not hold the key. Nothing has changed.
	ErrNotHolder = kind("the token does not hold the lock", "not_holder")
	// ErrNotHeld: nobody holds the lock.
	ErrNotHeld = kind("nobody holds the lock", "not_held")
	// ErrSessionEnded: the session of the call is over. ErrClosed: by Client.Close.
	ErrSessionEnded   = kind("the session has ended", "session_ended")
	ErrClosed         = error(&kindError{"locksidecar: the client is closed", []string{"session_ended"}, "closed"})
	ErrInvalidRequest = kind("an argument is wrong", "invalid_request")
	ErrTooLarge       = kind("the data or the call is too large", "too_large", "head_too_large")
	// ErrForbidden: also a call over TCP without a right token (unauthorized).
	ErrForbidden = kind("the sidecar does not allow this", "forbidden", "unauthorized")
	// ErrBadAnswer: something else than a locksidecar answers.
	ErrBadAnswer = kind("the answer cannot be read", "bad_answer")
)

// kindError is a kind of errors: those with some codes, and perhaps one reason.
type kindError struct {
	text   string
	codes  []string
	reason string
}

func kind(text string, codes ...string) error { return &kindError{"locksidecar: " + text, codes, ""} }

func (k *kindError) Error() string { return k.text }

// Error is one printable line for people.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("locksidecar: ")
	if e.Key != "" && !strings.Contains(e.Detail, fmt.Sprintf("%q", e.Key)) {
		fmt.Fprintf(&text, "%q: ", e.Key)
	}
	detail := e.Detail
	if detail == "" {
		detail = e.Code
	}
	quoted := fmt.Sprintf("%q", strings.Join(strings.Fields(detail), " ")) // no control characters of others
	text.WriteString(strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1]))
	if e.Holder != nil && e.Reason != "quiet" {
		fmt.Fprintf(&text, "; the holder is %s", e.Holder)
	}
	if e.QueuePosition > 0 {
		fmt.Fprintf(&text, "; queue position %d", e.QueuePosition)
	}
	return text.String()
}

// Is reports whether the error is of a kind, such as ErrLockHeld.
func (e *Error) Is(target error) bool {
	k, ok := target.(*kindError)
	return ok && slices.Contains(k.codes, e.Code) && (k.reason == "" || k.reason == e.Reason)
}

// Unwrap is the cause of an error without an answer, such as a *net.OpError.
func (e *Error) Unwrap() error { return e.cause }

// wireProblem is application/problem+json.
type wireProblem struct {
	Code          string  `json:"code"`
	Detail        string  `json:"detail"`
	Reason        string  `json:"reason"`
	Key           string  `json:"key"`
	Mode          Mode    `json:"mode"`
	Limit         int     `json:"limit"`
	HoldersCount  int     `json:"holders_count"`
	Holder        *Holder `json:"holder"`
	Kept          bool    `json:"kept"`
	Cached        bool    `json:"cached"`
	QueueLength   int     `json:"queue_length"`
	QueuePosition int     `json:"queue_position"`
	WaitedMS      int64   `json:"waited_ms"`
	QuietMS       int64   `json:"quiet_ms"`
	Reentry       int     `json:"reentry"`
}

// problemOf reads an answer with the status of a failure.
func problemOf(status int, body []byte, retryAfter time.Duration, about subject) *Error {
	var p wireProblem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return &Error{Code: "bad_answer", Status: status, Key: about.key, Detail: fmt.Sprintf("this is no answer of a sidecar: status %d, %.200q", status, body)}
	}
	e := &Error{
		Code: p.Code, Status: status, Detail: p.Detail, Key: p.Key, Reason: p.Reason,
		Holder: p.Holder, Mode: p.Mode, Limit: p.Limit, HoldersCount: p.HoldersCount, Kept: p.Kept, Cached: p.Cached,
		QueueLength: p.QueueLength, QueuePosition: p.QueuePosition, Waited: ms(p.WaitedMS), Reentry: p.Reentry,
		RetryAfter: retryAfter, Quiet: ms(p.QuietMS), Raw: body,
	}
	if e.Key == "" {
		e.Key = about.key
	}
	if e.Code == "lock_lost" {
		e.Token = about.token
	}
	return e
}

// subject is what a call is about.
type subject struct {
	key   string
	token int64
}

func lostError(key string, token int64, reason, more string) *Error {
	detail := fmt.Sprintf("lock %q (token %d) is lost: %s", key, token, reason)
	if more != "" {
		detail += "; " + more
	}
	return &Error{Code: "lock_lost", Key: key, Token: token, Reason: reason, Detail: detail}
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: "invalid_request", Detail: fmt.Sprintf(format, args...)}
}

func closedError() *Error {
	return &Error{Code: "session_ended", Reason: "closed", Detail: "this client is closed; make another one"}
}

func sessionEnded() *Error {
	return &Error{Code: "session_ended", Detail: "the session has ended, because its connection to the sidecar is closed"}
}

// hasNoAnswer reports whether the outcome of a call is unknown. Without a connection, nothing was sent.
func hasNoAnswer(err error) bool {
	return isCode(err, "connection_lost", "timeout", "bad_answer")
}

// mayBeDone reports whether the outcome of a release is unknown, or it may succeed later.
func mayBeDone(err error) bool {
	return hasNoAnswer(err) || isCode(err, "unreachable", "limit", "store_unavailable", "draining", "request_timeout", "internal")
}

// isAway reports whether a call failed because the sidecar is not there, stops, or was restarted.
func isAway(err error) bool {
	return isCode(err, "unreachable", "connection_lost", "session_ended", "draining")
}
