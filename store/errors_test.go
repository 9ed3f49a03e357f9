package store_test

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/store"
)

// TestErrorsAreInPlainWords: users read what the store was doing, and no names of methods, whatever an engine calls the operation.
func TestErrorsAreInPlainWords(t *testing.T) {
	cause := errors.New("it is away")
	for op, want := range map[string]string{
		"OpenLeases":    "store: opening a lease: it is away",
		"open leases":   "store: opening a lease: it is away",
		"Get":           "store: reading a lock: it is away",
		"SomethingElse": "store: something else: it is away",
		"connect":       "store: connect: it is away",
	} {
		if got := (&store.Error{Op: op, Err: cause}).Error(); got != want {
			t.Errorf("%s: %q, want %q", op, got, want)
		}
	}
	if got := (&store.Error{Op: "acquire", Err: cause, Unknown: true}).Error(); got != "store: acquiring a lock: outcome unknown: it is away" {
		t.Errorf("unknown: %q", got)
	}
}
