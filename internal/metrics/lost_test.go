package metrics_test

import (
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/lease"
)

func TestLostReasonsAreThoseOfTheWire(t *testing.T) {
	wire := []string{
		string(lease.LostExpired), string(lease.LostStore), string(lease.LostDisconnected),
		string(lease.LostMaxHold), string(lease.LostForced), string(lease.LostShutdown),
	}
	if !slices.Equal(metrics.LostReasons, wire) {
		t.Errorf("%v, not %v", metrics.LostReasons, wire)
	}
}
