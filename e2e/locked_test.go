package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	stuckClients = 16
	stuckKeys    = 500
	stuckTime    = 4 * time.Second // longer than the limit of statements for a locked key
)

// TestLockedRow: an operator's open transaction locks one key's row. Calls for this key wait, and
// calls for other keys are not affected.
// Proves: trap locked row
func TestLockedRow(t *testing.T) {
	const longest = stuckTime * 3 / 4 // the longest allowed time of a call for another key
	o, url := onPostgres(t)
	s := start(t, o)
	holder := dial(t, s.socket)
	token := holder.acquire("stuck", "")
	before, _ := churn(t, s)
	rollback := lockRow(t, url, "stuck")

	tryer, waiter := dial(t, s.socket), dial(t, s.socket)
	tryer.send("PUT", lockPath("stuck"), "", "Cache-Control: no-cache")
	waiter.send("PUT", lockPath("stuck"), `{"wait_ms":-1}`)
	release := fmt.Sprintf("%s?token=%d", lockPath("stuck"), token)
	holder.send("DELETE", release, "")
	during, slowest := churn(t, s)
	rollback()

	t.Logf("calls for other keys in %s: %d before, %d during, the slowest took %s", stuckTime, before, during, slowest.Round(time.Millisecond))
	if during < before/5 || before < stuckKeys { // the limit is low, because the machine may have become busier
		t.Errorf("%d calls for other keys with a locked row, %d before", during, before)
	}
	if slowest > longest {
		t.Errorf("a call for another key took %s, want at most %s", slowest, longest)
	}
	if ans := tryer.read("PUT", lockPath("stuck")); ans.status != 423 && ans.status != 503 {
		t.Errorf("the call without a wait: %d %s", ans.status, ans.body)
	}
	// Calls that failed because of the locked row are repeated, and succeed.
	if ans := holder.read("DELETE", release); ans.status != 200 {
		ans.want(503, "store_unavailable")
		if again := holder.call("DELETE", release, ""); again.status != 200 && again.status != 409 {
			t.Errorf("the release after the rollback: %d %s", again.status, again.body)
		}
	}
	ans := waiter.read("PUT", lockPath("stuck"))
	if ans.status == 503 {
		ans = waiter.call("PUT", lockPath("stuck"), `{"wait_ms":-1}`)
	}
	if next := ans.granted(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	waiter.close()
	holder.close()
	tryer.close()
	nothingLeft(t, url)
}

// lockRow locks a lock's row in an open transaction.
func lockRow(t *testing.T, url, key string) (rollback func()) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := tx.Exec(ctx, "SELECT * FROM locksidecar.locks WHERE key = $1 FOR UPDATE", key)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("locking the row: %v, %d rows", err, tag.RowsAffected())
	}
	return func() { _ = tx.Rollback(ctx) }
}

// churn acquires and releases keys for a while. It returns the number of calls and the longest time
// of a call.
func churn(t *testing.T, s *sidecar) (calls int64, slowest time.Duration) {
	t.Helper()
	var done atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	until := time.Now().Add(stuckTime)
	for i := range stuckClients {
		a := dial(t, s.socket)
		wg.Go(func() {
			defer a.close()
			timed := func(call func()) {
				began := time.Now()
				call()
				done.Add(1)
				took := time.Since(began)
				mu.Lock()
				slowest = max(slowest, took)
				mu.Unlock()
			}
			for j := i; time.Now().Before(until); j += stuckClients {
				key := fmt.Sprintf("other:%d", j%stuckKeys)
				var token int64
				timed(func() { token = a.acquire(key, `{"wait_ms":-1}`) })
				timed(func() { a.release(key, token) })
			}
		})
	}
	wg.Wait()
	return done.Load(), slowest
}
