package proxy

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// remote is a store that does not answer at once, and with b not before its gate opens.
type remote struct {
	*memory.Store
	slow atomic.Bool
	gate chan struct{}
}

func (*remote) Traits() store.Traits { return store.Traits{} }

func (r *remote) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	r.await(ctx, asks[0].Key)
	return r.Store.Acquire(ctx, asks)
}

func (r *remote) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	r.await(ctx, claims[0].Key)
	return r.Store.Release(ctx, claims)
}

func (r *remote) await(ctx context.Context, key string) {
	if key != "b" || !r.slow.Load() {
		return
	}
	select {
	case <-r.gate:
	case <-ctx.Done():
	}
}

// A session ends at once when its connection closes while the goroutine that serves it is
// in the store with its call; and what that gets all the same is handed back.
// Proves: rule lone call
func TestCallerLeavesDuringItsStatement(t *testing.T) {
	t.Parallel()
	const release = "DELETE"
	for name, c := range map[string]struct{ method, body, ahead string }{
		"acquire":                 {"PUT", "", ""},
		"acquire, more sent":      {"PUT", "", requestText("GET", "/v1", "")},
		"acquire, bound to a TTL": {"PUT", `{"bind":"ttl","ttl_ms":60000}`, ""},
		"release":                 {release, "", ""},
		"release, more sent":      {release, "", "GET /v"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := &remote{Store: memory.NewSpace().Open(store.Identity{Namespace: "test", Instance: "i", Pod: "p"}), gate: make(chan struct{})}
			f, _ := withManagerOn(t, st)
			holder, target := f.dial(), "/v1/locks/b"
			holder.do("PUT", "/v1/locks/a", "").want(t, 200, "")
			if c.method == release {
				target += "?token=" + tokenOf(holder.do("PUT", target, ""))
			}
			st.slow.Store(true)
			holder.send(requestText(c.method, target, c.body) + c.ahead)
			await.Until(t, "a call waits", f.callWaits)
			_ = holder.Close()
			await.Until(t, "the session has ended", func() bool {
				return strings.Contains(f.log.text(), "connection closed while it held locks")
			})
			close(st.gate)
			other := f.dial()
			for _, key := range []string{"a", "b"} {
				other.do("PUT", "/v1/locks/"+key, `{"wait_ms":-1}`).want(t, 200, "")
			}
		})
	}
}
