package holdings

import (
	"testing"
	"unsafe"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// TestLocksAreSmall: one more byte for each lock takes 16 more of the heap, which grows to twice of what is used.
func TestLocksAreSmall(t *testing.T) {
	t.Parallel()
	if n := unsafe.Sizeof(Lock{}); n > 112 {
		t.Errorf("a lock has %d bytes, want a size class of 112", n)
	}
}

// TestUnrecordedLocksShareTheirTerms: without a span, an owner and limits, a lock needs no terms.
func TestUnrecordedLocksShareTheirTerms(t *testing.T) {
	t.Parallel()
	l := &heartbeat.Lease{}
	if terms := termsOf(&Won{Req: &types.Request{}, Lease: l}); terms != plain {
		t.Errorf("terms of its own: %+v", terms)
	}
	for name, req := range map[string]types.Request{"owner": {Owner: "o"}, "max_hold": {MaxHold: 1}, "min_hold": {MinHold: 1}} {
		if termsOf(&Won{Req: &req, Lease: l}) == plain {
			t.Errorf("a lock with %s shares its terms", name)
		}
	}
}
