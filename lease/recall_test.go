package lease

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// These tests are about a sidecar that meets a key that another one keeps. keep_test.go has their helpers.

// A watch that was carried out, but not confirmed, is ended. So the key can be kept again, although the lease of the watch lives on.
// Proves: trap kept key
func TestAWatchOfUnknownOutcomeEnds(t *testing.T) {
	for name, f := range map[string]fault{"carried out": {times: 1, forget: true}, "late": {times: 1, lose: true, late: 9 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			keepers(t, func(t *testing.T, a, b *rig) {
				b.lock(b.explicitSession(), "own")
				b.st.set("Watch", f)
				if _, _, err := b.m.Watch(context.Background(), nil, "k", func(Event) {}); !store.OutcomeUnknown(err) {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				a.keeps(a.eitherSession(), "k")
				if watches, ends := b.st.count("Watch"), b.st.count("Unwatch"); watches != 1 || ends != 1 {
					t.Errorf("%d watches, %d ends", watches, ends)
				}
			})
		})
	}
}
