package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestPgBouncer: behind a pooler that gives each transaction another connection,
// locks work; only the news of other pods has to be polled for. A sidecar that is
// not told that it may not listen finds out.
func TestPgBouncer(t *testing.T) {
	for _, listen := range []string{"never", "auto"} {
		t.Run(listen, func(t *testing.T) {
			url := cluster.NewDatabase(t)
			through := cluster.Pooler(t, url, 3) // fewer than two sidecars have connections
			o := options{"STORE_URL": through, "LISTEN": listen, "POLL_INTERVAL": "100ms", "TTL": "1500ms"}
			one, two := start(t, o), start(t, o)
			exchange(t, one, two)
			exchangeMany(t, one, two)

			// Renewals go on: a lock outlives its TTL by far.
			a, b := dial(t, one.socket), dial(t, two.socket)
			token := a.acquire("renewed", "")
			for until := time.Now().Add(3 * time.Second); time.Now().Before(until); {
				b.call("PUT", lockPath("renewed"), `{"wait_ms":200}`).want(423, "wait_timeout")
			}
			a.release("renewed", token)
			nothingLeft(t, url)
			for _, s := range []*sidecar{one, two} {
				if code := s.stop(); code != 0 {
					t.Errorf("stopped with code %d", code)
				}
				s.noErrors()
			}
		})
	}
}

// exchangeMany mixes the statements of many clients on the pooler's few connections.
func exchangeMany(t *testing.T, sidecars ...*sidecar) {
	t.Helper()
	const clients, each = 16, 10
	r := &register{t: t}
	var wg sync.WaitGroup
	for i := range clients {
		a := dial(t, sidecars[i%len(sidecars)].socket)
		wg.Go(func() {
			defer a.close()
			for j := range each {
				key := fmt.Sprintf("many:%d", (i+j)%4)
				token := a.acquire(key, `{"wait_ms":20000}`)
				r.granted(key, int64(i+1), token)
				r.ending(key, int64(i+1))
				a.release(key, token)
			}
		})
	}
	wg.Wait()
	if got := r.grants.Load(); got != clients*each {
		t.Errorf("%d grants, want %d", got, clients*each)
	}
}
