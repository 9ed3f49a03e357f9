package e2e

import (
	"fmt"
	"testing"
	"time"
)

// The sidecar's statements begin with a comment that names them.
const (
	renewal      = "/* locksidecar:lease_renew */%"
	anyStatement = "/* locksidecar:%"
)

// TestRenewalIsOneStatement: 10,000 held locks are renewed by one statement in
// each interval.
func TestRenewalIsOneStatement(t *testing.T) {
	const (
		locks     = 10_000
		sessions  = 10
		intervals = 5
		interval  = time.Second
	)
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "10s", "RENEW_INTERVAL": interval.String()}))
	for i := range sessions {
		a := dial(t, s.socket)
		for j := range locks / sessions {
			a.acquire(fmt.Sprintf("renewed:%d:%d", i, j), "")
		}
	}
	cluster.ResetStatements(t, url)
	began := time.Now()
	s.await("a few renewals", func() bool {
		return cluster.Statements(t, url, renewal) >= intervals
	})
	took := time.Since(began)
	// The jitter sends renewals up to a tenth of the interval early.
	most := int64(took/(interval*9/10)) + 1
	renewals := cluster.Statements(t, url, renewal)
	if renewals > most {
		t.Errorf("%d renewals in %s, want at most %d", renewals, took, most)
	}
	if all := cluster.Statements(t, url, anyStatement); all != renewals {
		t.Errorf("%d statements, %d of them renewals: holding locks costs something else too", all, renewals)
	}
	t.Logf("%d locks held: %d renewals in %s", locks, renewals, took.Round(time.Millisecond))
}

// TestOwnLocksCostNothing: what the sidecar knows, it does not ask.
func TestOwnLocksCostNothing(t *testing.T) {
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "1h", "CACHE_TTL": "1m"}))
	a := dial(t, s.socket)
	token := a.acquire("mine", `{"data":{"step":1}}`)

	// A lock of somebody else, in another pod.
	elsewhere := start(t, o)
	dial(t, elsewhere.socket).acquire("theirs", "")
	first := a.call("PUT", lockPath("theirs"), "").want(423, "held")
	if _, cached := first.json["cached"]; cached {
		t.Errorf("the first denial says it is cached: %s", first.body)
	}
	elsewhere.signal(stopSignal) // it must not renew while statements are counted

	cluster.ResetStatements(t, url)
	for range 500 {
		if v := a.call("GET", lockPath("mine"), ""); v.json["mine"] != true || v.int("token") != token {
			t.Fatalf("GET: %s", v.body)
		}
		a.call("PATCH", lockPath("mine"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
		if d := a.call("PUT", lockPath("theirs"), "").want(423, "held"); d.json["cached"] != true {
			t.Fatalf("a repeated denial is not cached: %s", d.body)
		}
	}
	if n := cluster.Statements(t, url, anyStatement); n != 0 {
		t.Errorf("%d statements for 500 GETs, PATCHes and denials, want 0", n)
	}
	// Who does not trust the cache asks the store.
	if d := a.call("PUT", lockPath("theirs"), "", "Cache-Control: no-cache").want(423, "held"); d.json["cached"] != nil {
		t.Errorf("no-cache was answered from the cache: %s", d.body)
	}
	if n := cluster.Statements(t, url, anyStatement); n == 0 {
		t.Error("no-cache did not ask the store")
	}
}

// TestIdleCostsNothing: a sidecar without leases sends no statement.
func TestIdleCostsNothing(t *testing.T) {
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "600ms"}))
	a := dial(t, s.socket)
	token := a.acquire("once", "")
	a.release("once", token)
	// The lease is closed once nothing has ridden on it for an interval; dropping its
	// waiters is the last statement of that.
	s.await("the lease to be closed", func() bool { return cluster.Statements(t, url, "/* locksidecar:bury_drop_waiters */%") > 0 })
	cluster.ResetStatements(t, url)
	const quiet = 2 * time.Second
	time.Sleep(quiet) // it is the absence of statements that is measured
	if n := cluster.Statements(t, url, anyStatement); n != 0 {
		t.Errorf("%d statements in %s of doing nothing", n, quiet)
	}
}
