package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// The sidecar's statements begin with a comment that names them.
const (
	renewal      = "/* locksidecar:lease_renew */%"
	anyStatement = "/* locksidecar:%"
)

// otherStatements counts the statements that match one pattern and not another.
const otherStatements = `SELECT coalesce(sum(s.calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
	WHERE d.datname = current_database() AND s.query LIKE $1 AND s.query NOT LIKE $2`

// hears waits until the listener of a sidecar works, because connecting needs statements.
func (s *sidecar) hears() {
	s.t.Helper()
	s.await("notifications to be heard", func() bool { return len(s.logged("notifications of other instances arrive")) > 0 })
}

// looked waits until this number of sidecars have read their missed signals, which they do after
// they begin to listen.
func looked(t *testing.T, url string, sidecars int64) {
	t.Helper()
	eventually(t, "signals to be looked for", func() bool {
		return cluster.Statements(t, url, "/* locksidecar:signals_of */%") >= sidecars
	})
}

// TestRenewalIsOneStatement: one statement in each interval renews 100,000 locks.
// Proves: rule cost
func TestRenewalIsOneStatement(t *testing.T) {
	const (
		sessions  = 100
		each      = 1000
		intervals = 5
		interval  = time.Second
		longest   = 3 * time.Minute // to acquire the locks, with the race detector
	)
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "10s", "RENEW_INTERVAL": interval.String(), "LOG_LEVEL": "info"}))
	began := time.Now()
	var wg sync.WaitGroup
	for i := range sessions {
		a := dial(t, s.socket)
		wg.Go(func() { a.acquireAll(keys(fmt.Sprintf("renewed:%d", i), each)) })
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d locks acquired in %s", sessions*each, took.Round(time.Millisecond))
	if took > longest {
		t.Errorf("want at most %s", longest)
	}
	if held := pgtest.Query[int64](t, url, heldLocks); held != sessions*each {
		t.Errorf("%d locks are held, want %d", held, sessions*each)
	}

	cluster.ResetStatements(t, url)
	began = time.Now()
	s.await("a few renewals", func() bool {
		return cluster.Statements(t, url, renewal) >= intervals
	})
	renewals := cluster.Statements(t, url, renewal)
	took = time.Since(began)
	// Because of the jitter, renewals are up to a tenth of the interval early. One may have been
	// late.
	most := int64(took/(interval*9/10)) + 2
	if renewals > most {
		t.Errorf("%d renewals in %s, want at most %d", renewals, took, most)
	}
	if others := pgtest.Query[int64](t, url, otherStatements, anyStatement, renewal); others != 0 {
		t.Errorf("%d other statements than renewals: holding locks costs more than that", others)
	}
	t.Logf("%d locks held: %d renewals in %s", sessions*each, renewals, took.Round(time.Millisecond))
}

// acquireAll acquires many keys, a hundred in a call. The requests are pipelined, and only the
// status of the answers is read, because parsing 100,000 locks would take most of the time.
func (a *app) acquireAll(names []string) {
	const together = 100
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for some := range slices.Chunk(names, together) {
			a.send("POST", "/v1/locks", several(some, ""))
		}
	}()
	for range slices.Chunk(names, together) {
		_ = a.SetReadDeadline(time.Now().Add(3 * patience))
		res, err := http.ReadResponse(a.In, &http.Request{Method: http.MethodPost})
		if err != nil {
			a.t.Errorf("acquiring many: %v", err)
			break
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 {
			a.t.Errorf("acquiring many: status %d", res.StatusCode)
			break
		}
	}
	<-sent
}

// checkedTogether is the average number of waiters in a check, or 0.
const checkedTogether = `
	SELECT coalesce(sum(s.rows) / nullif(sum(s.calls), 0), 0)::bigint
	FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
	WHERE d.datname = current_database() AND s.query LIKE '/* locksidecar:check */%'`

// TestWaitingCostsAlmostNothing: a thousand calls wait for a hundred keys behind another sidecar.
// Few statements check them.
// Proves: rule cost
func TestWaitingCostsAlmostNothing(t *testing.T) {
	t.Parallel()
	const (
		names, waiters = 100, 1000
		interval       = 2 * time.Second
		watched        = 5 * interval
		// A sidecar with waiters renews its lease, and checks all of them with one statement. The
		// other sidecar renews once an hour.
		perInterval = 2
		// Each of the two sidecars checks its listening connection twice a minute.
		ears = 2
	)
	o, url := onPostgres(t)
	o = o.with(options{"POSTGRES_POLL_INTERVAL": noPoll, "LOG_LEVEL": "info"})
	one := start(t, o.with(options{"TTL": "3h"}))
	two := start(t, o.with(options{"TTL": (3 * interval).String(), "MAX_SESSIONS": "2000"}))
	holder := dial(t, one.socket)
	tokens := map[string]int64{}
	all := keys("waited", names)
	for _, key := range all {
		tokens[key] = holder.acquire(key, "")
	}
	apps := make([]*app, waiters)
	for i := range apps {
		apps[i] = dial(t, two.socket)
		apps[i].send("PUT", lockPath(all[i%names]), `{"wait_ms":60000}`)
	}
	queueOf(t, url, waiters)
	// The calls came within some time. Checks that are due soon are made together, so one statement
	// checks all soon.
	eventually(t, "one check of all waiters", func() bool {
		rows := pgtest.Query[int64](t, url, checkedTogether)
		if rows > 0 && rows < waiters {
			cluster.ResetStatements(t, url)
		}
		return rows == waiters
	})

	cluster.ResetStatements(t, url)
	began := time.Now()
	time.Sleep(watched) // the statements in this time are counted
	statements := cluster.Statements(t, url, anyStatement)
	took := time.Since(began)
	// Because of the jitter, statements are up to a tenth early, and each may just have been due.
	most := perInterval*(int64(took/(interval*9/10))+1) + ears
	t.Logf("%d statements in %s for %d waiters, of which %d renewals", statements, took.Round(time.Millisecond), waiters, cluster.Statements(t, url, renewal))
	if statements > most {
		t.Errorf("want at most %d", most)
	}
	if statements < int64(took/interval)-1 {
		t.Error("too few: the lease is not renewed, or the waiters are not checked")
	}
	// The calls did wait: each gets its lock in turn.
	var wg sync.WaitGroup
	for i, a := range apps {
		key := all[i%names]
		wg.Go(func() {
			token := a.read("PUT", lockPath(key)).granted()
			if token <= tokens[key] {
				t.Errorf("%s: token %d after %d", key, token, tokens[key])
			}
			a.release(key, token)
		})
	}
	for _, key := range all {
		holder.release(key, tokens[key])
	}
	wg.Wait()
	nothingLeft(t, url)
}

// TestOwnLocksCostNothing: the sidecar answers from memory what it knows.
func TestOwnLocksCostNothing(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	s := start(t, o.with(options{"TTL": "1h", "CACHE_TTL": "1m"}))
	a := dial(t, s.socket)
	token := a.acquire("mine", `{"data":{"step":1}}`)
	s.hears()
	looked(t, url, 1)

	// A lock of another pod.
	elsewhere := start(t, o)
	dial(t, elsewhere.socket).acquire("theirs", "")
	first := a.call("PUT", lockPath("theirs"), "").want(423, "held")
	if first.json["cached"] != false {
		t.Errorf("the first refusal says it is cached: %s", first.body)
	}
	elsewhere.signal(stopSignal) // so that it does not renew while statements are counted

	cluster.ResetStatements(t, url)
	for range 500 {
		if v := a.call("GET", lockPath("mine"), ""); v.json["mine"] != true || v.int("token") != token {
			t.Fatalf("GET: %s", v.body)
		}
		a.call("PATCH", lockPath("mine"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
		if d := a.call("PUT", lockPath("theirs"), "").want(423, "held"); d.json["cached"] != true {
			t.Fatalf("a repeated refusal is not cached: %s", d.body)
		}
	}
	if n := cluster.Statements(t, url, anyStatement); n != 0 {
		t.Errorf("%d statements for 500 GETs, PATCHes and refusals, want 0", n)
	}
	// With no-cache, the sidecar asks the store.
	if d := a.call("PUT", lockPath("theirs"), "", "Cache-Control: no-cache").want(423, "held"); d.json["cached"] != false {
		t.Errorf("no-cache was answered from the cache: %s", d.body)
	}
	if n := cluster.Statements(t, url, anyStatement); n == 0 {
		t.Error("no-cache did not ask the store")
	}
}

// TestIdleCostsNothing: a sidecar without leases sends no statement.
func TestIdleCostsNothing(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	s := start(t, o.with(options{"RENEW_INTERVAL": "200ms"}))
	a := dial(t, s.socket)
	token := a.acquire("once", "")
	cluster.ResetStatements(t, url) // those of the probe, whose lease is closed
	a.release("once", token)
	// The lease is closed after an interval without locks. Its last statement drops its waiters.
	s.await("the lease to be closed", func() bool { return cluster.Statements(t, url, "/* locksidecar:reap_rest */%") > 0 })
	cluster.ResetStatements(t, url)
	const quiet = 2 * time.Second
	time.Sleep(quiet) // statements in this time are counted
	if n := cluster.Statements(t, url, anyStatement); n != 0 {
		t.Errorf("%d statements in %s without work", n, quiet)
	}
}
