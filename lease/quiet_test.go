package lease

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// In a quiet time, a call that does not wait fails with a known outcome. A call that waits is
// queued.
// Proves: A3
func TestQuietTime(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		if r.st.Traits().Inline {
			t.Skip("an inline store has no quiet time")
		}
		s, ctx := r.eitherSession(), context.Background()
		r.st.setQuiet(7 * time.Second)

		tries := map[string]*answer{
			"one": r.ask(ctx, s, types.Request{Key: "k"}),
			"ttl": r.ask(ctx, nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Hour}),
		}
		for what, a := range tries {
			<-a.done
			quiet, ok := errors.AsType[*QuietError](a.err)
			if !ok || quiet.Left != 7*time.Second || !store.Unavailable(a.err) || store.OutcomeUnknown(a.err) || a.after != 0 {
				t.Errorf("%s: error %v after %s", what, a.err, a.after)
			}
		}
		_, err := r.m.AcquireAll(ctx, s, []string{"a", "b"}, types.Request{})
		if _, ok := errors.AsType[*QuietError](err); !ok {
			t.Errorf("two keys: error %v", err)
		}
		waits := r.ask(ctx, s, types.Request{Key: "k", Wait: time.Hour})
		<-waits.done
		waits.granted(t) // this store grants queued asks
	})
}
