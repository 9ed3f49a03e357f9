package store

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Error is the error that a store returns.
type Error struct {
	// Op is the operation, in the words of [Store].
	Op string
	// Err is the cause.
	Err error
	// Unknown: the operation may have been carried out, then completely. If false, nothing was done.
	Unknown bool
}

func (e *Error) Error() string {
	if e.Unknown {
		return "store: " + plain(e.Op) + ": outcome unknown: " + e.Err.Error()
	}
	return "store: " + plain(e.Op) + ": " + e.Err.Error()
}

// plainWords says to users what the store was doing. Engines name an operation as the method, or in words.
var plainWords = map[string]string{
	"acquire": "acquiring a lock", "enqueue": "acquiring a lock", "acquire and release": "acquiring and releasing locks",
	"release": "releasing a lock", "amend": "checking a lock", "downgrade": "making a lock shared", "adopt": "naming the holder of a lock", "get": "reading a lock", "load": "reading a lock", "states": "reading a lease",
	"swap": "changing a lock", "list": "listing locks", "scan": "listing locks", "waiting": "listing calls that wait",
	"check": "checking a call that waits", "cancel": "ending a wait", "withdraw": "withdrawing a call",
	"open": "opening a lease", "open lease": "opening a lease", "open leases": "opening a lease", "opened": "reading leases",
	"renew": "renewing leases", "revoke": "ending a lease", "revoke instance": "ending the leases of a sidecar", "reap instance": "ending the leases of a sidecar",
	"signal": "sending a request to a holder", "signals": "reading the requests to holders",
	"acknowledge": "forgetting the requests to holders", "acknowledge signals": "forgetting the requests to holders",
	"watch": "watching keys", "unwatch": "ending a watch", "held under": "reading the locks of a lease", "move": "moving locks to another lease",
	"sweep": "sweeping", "stats": "counting locks", "elect": "electing the sidecar that counts locks", "listen": "listening to other sidecars",
	"next": "reading the next token", "next token": "reading the next token", "raise": "raising the tokens", "raise tokens": "raising the tokens",
	"ready": "checking the server", "start": "starting",
}

func plain(op string) string {
	var words strings.Builder
	for i, c := range op {
		if unicode.IsUpper(c) && i > 0 {
			words.WriteByte(' ')
		}
		words.WriteRune(unicode.ToLower(c))
	}
	return cmp.Or(plainWords[words.String()], words.String())
}

func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether the store cannot work at present. A later try may help.
func Unavailable(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// OutcomeUnknown reports whether the failed operation may have been carried out. The caller repeats such an
// attempt with the same AttemptID, or withdraws it.
func OutcomeUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Unknown
}

// QuietError says that the store grants nothing for this time, because it may have forgotten grants in which sidecars still believe.
type QuietError struct{ Left time.Duration }

func (e *QuietError) Error() string {
	return fmt.Sprintf("the store has a quiet time for another %s, in which it grants nothing: it was replaced in a failover, or restarted, or is new, "+
		"so it may not know of locks that others hold", e.Left.Round(time.Millisecond))
}
