package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store"
)

var (
	errNotReached = errors.New("redis has not been reached yet")
	errNotHeard   = errors.New("the connection for letters is not open yet")
	errFormat     = errors.New("a record has an unknown format: another program has written it, or a newer sidecar")
	errAnswer     = errors.New("redis gave an answer that is not understood")
)

// notSentError is the error of a call that did not leave this process.
type notSentError struct{ error }

func (e *notSentError) Unwrap() error { return e.error }

// sentError is the error of a call that may have been carried out. It hides the cause from the library, which would
// repeat the call.
type sentError struct{ cause error }

func (e *sentError) Error() string { return e.cause.Error() }

// mark tells calls that may have been carried out from others.
func mark(err error) error {
	var answer goredis.Error
	var notSent *notSentError
	if err == nil || errors.As(err, &answer) || errors.As(err, &notSent) || errors.Is(err, goredis.ErrClosed) || errors.Is(err, goredis.ErrPoolTimeout) ||
		errors.Is(err, goredis.ErrPoolExhausted) {
		return err
	}
	return &sentError{err}
}

// refusals are the errors with which Redis refuses a call before it begins, with what an operator should know.
var refusals = map[string]string{ //nolint:gosec // no credentials: codes of errors
	"READONLY":    "this server is a replica: it takes no writes",
	"LOADING":     "the server is loading its data",
	"MASTERDOWN":  "this server is a replica whose master is down",
	"OOM":         "the memory that maxmemory allows is full, so nothing new is granted; raise it, or delete what does not belong to locksidecar",
	"CLUSTERDOWN": "the cluster has no server for some slots",
	"TRYAGAIN":    "the cluster is moving the slot to another server",
	"MOVED":       "the slot has moved to another server",
	"ASK":         "the slot is moving to another server",
	"NOREPLICAS":  "too few replicas are connected (min-replicas-to-write)",
	"MISCONF":     "the server cannot write its files (stop-writes-on-bgsave-error)",
	"BUSY":        "the server is busy with a script of another program",
	"NOAUTH":      "redis wants a user and password, and the store's URL has none",
	"WRONGPASS":   "redis refuses the user or password of the store's URL",
	"NOPERM":      "the user of the store's URL lacks a right: see docs/stores.md",
	"NOSCRIPT":    "",
}

const (
	textNoFunction = "ERR Function not found"
	textNotLocal   = "non local key" // a slot is moving, and a key of the call is not here
	// A command within a function is refused. Redis before 7.2 does not name it.
	textNoRight, textNoRight70 = "ACL failure in script", "user executing the script can't run this command"
)

// refusal returns why Redis did not carry out a call. Errors from within a function are none, because
// they may come after a change.
func refusal(err error) (why string, refused bool) {
	var answer goredis.Error
	if !errors.As(err, &answer) {
		return "", false
	}
	text := answer.Error()
	if strings.HasPrefix(text, textNoFunction) {
		return "", true
	}
	if strings.Contains(text, textNoRight) || strings.Contains(text, textNoRight70) {
		return refusals["NOPERM"], false
	}
	if strings.Contains(text, "@user_function") {
		return "", false
	}
	code, _, _ := strings.Cut(text, " ")
	why, refused = refusals[code]
	return why, refused
}

// isFull reports whether Redis refused a call because its memory is full.
func isFull(err error) bool {
	var answer goredis.Error
	_, refused := refusal(err)
	return refused && errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "OOM ")
}

// classify makes a store's error. changes is whether the call may change something.
func classify(op string, err error, changes bool) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*store.Error](err); ok {
		return err
	}
	why, refused := refusal(err)
	_, notSent := errors.AsType[*notSentError](err)
	// The library waits between the tries that a server refuses. A call that ends then is not hidden by sentError.
	waited := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	known := refused || notSent || waited || errors.Is(err, goredis.ErrClosed) || errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, errBefore)
	if sent, ok := errors.AsType[*sentError](err); ok {
		err = sent.cause
	}
	if why != "" {
		err = fmt.Errorf("%s: %w", why, err)
	}
	return &store.Error{Op: op, Err: err, Unknown: changes && !known}
}

// errBefore marks that the caller left before anything was sent.
var errBefore = errors.New("nothing was sent")

// transient reports whether a call that only reads, or may be repeated, may succeed a moment later.
func transient(err error) bool {
	if _, sent := errors.AsType[*sentError](err); sent {
		return true
	}
	if _, notSent := errors.AsType[*notSentError](err); notSent {
		return true
	}
	return moving(err)
}

// moving reports whether a cluster is moving a slot, so that the call will soon succeed.
func moving(err error) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && (strings.Contains(answer.Error(), textNotLocal) || strings.HasPrefix(answer.Error(), "TRYAGAIN"))
}

// beforeSend is the error of a caller that has left before its call is sent.
func beforeSend(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return errors.Join(errBefore, err)
	}
	return nil
}
