package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// TestStoreAppears: a database that is down at the start is used when it is up. The log gives the
// reason once.
func TestStoreAppears(t *testing.T) {
	t.Parallel()
	const (
		outage = 3 * time.Second  // includes several tries, because their first pause is 50 ms
		limit  = 10 * time.Second // the longest pause plus slack
	)
	o, url := onPostgres(t)
	proxy := pgproxy.Start(t, url)
	proxy.Refuse(true)
	s := launch(t, folder(t), o.with(options{"STORE_URL": proxy.URL()}))
	s.await("the log line with the reason", func() bool { return len(s.logged("refused")) > 0 })
	time.Sleep(outage) // no further line may be logged in this time
	if s.tryReady() {
		t.Error("ready without a database")
	}
	dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	proxy.Refuse(false)
	began := time.Now()
	s.await("ready", s.tryReady)
	if took := time.Since(began); took > limit {
		t.Errorf("ready %s after the database was up, want at most %s", took, limit)
	}
	dial(t, s.socket).acquire("x", "")
	// The store logs one line. The start logs one line, when it no longer waits for the store.
	// Further tries log nothing.
	for _, message := range []string{"the store is not ready", "not ready yet"} {
		if n := len(s.logged(`"level":"WARN"`, message, "refused")); n != 1 {
			t.Errorf("%d lines with %q and the reason, want 1", n, message)
		}
	}
	if n := len(s.logged("refused")); n > 3 { // includes the one failed call
		t.Errorf("%d lines with the reason:\n%s", n, strings.Join(s.logged("refused"), "\n"))
	}
}

// TestReadOnlyByDefault: a database has read-only transactions by default. All connections, also
// that of the migration, override this.
// Proves: trap defaults
func TestReadOnlyByDefault(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	o := options{"STORE_URL": url}
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	const sql = "ALTER DATABASE %s SET default_transaction_read_only = on"
	if _, err := conn.Exec(context.Background(), strings.Replace(sql, "%s", conn.Config().Database, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Query[string](t, url, "SHOW default_transaction_read_only"); got != "on" {
		t.Fatalf("the database is not read-only by default: %s", got)
	}
	exchange(t, start(t, o), start(t, o))
}

// exchange lets two sidecars use locks of each other in all ways.
func exchange(t *testing.T, one, two *sidecar) {
	t.Helper()
	a, b := dial(t, one.socket), dial(t, two.socket)
	token := a.acquire("exchanged", "")
	b.call("PUT", lockPath("exchanged"), "").want(423, "held")
	b.call("PUT", lockPath("exchanged"), `{"wait_ms":50}`).want(423, "wait_timeout")
	b.send("PUT", lockPath("exchanged"), `{"wait_ms":-1}`)
	one.awaitQueue("exchanged", 1)
	a.release("exchanged", token)
	next := b.read("PUT", lockPath("exchanged")).granted()
	if next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	a.send("PUT", lockPath("exchanged"), `{"wait_ms":-1}`)
	two.awaitQueue("exchanged", 1)
	b.close() // a drop hands off, too
	last := a.read("PUT", lockPath("exchanged")).granted()
	if last <= next {
		t.Errorf("token %d after %d", last, next)
	}
	a.release("exchanged", last)
}
