package upgrade

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// exitConfig is the exit code of a store that cannot work.
const exitConfig = 78

// TestTooOld: when a migration says that a release must not run any more, its sidecars
// grant nothing, keep what is held, and end when nothing is; they say why, and so do those
// that are started.
// Proves: trap migration
func TestTooOld(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	old, busy, later := newPod(t, "old", url), newPod(t, "busy", url), newPod(t, "later", url)
	for _, p := range []*pod{old, busy, later} {
		p.ttl = longTTL
	}
	if out, err := later.command(built.next, "migrate").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	old.run(built.previous)
	busy.run(built.previous)
	later.run(built.next)
	for _, p := range []*pod{old, busy, later} {
		p.ready()
	}

	holder, other := dial(t, old), dial(t, later)
	token := call(t, holder, "PUT", "/v1/locks/kept", "{}", 200).Token
	call(t, other, "PUT", "/v1/locks/wanted", "{}", 200)
	call(t, dial(t, busy), "PUT", "/v1/locks/for-ever", "{}", 200)
	atOld, atNew := wait(t, old, "wanted"), wait(t, later, "kept")
	expiry := "SELECT l.expires_at FROM locksidecar.leases l JOIN locksidecar.locks k ON k.lease_id = l.id WHERE k.key = 'kept'"
	before := pgtest.Query[time.Time](t, url, expiry)

	execute(t, url, "UPDATE locksidecar.meta SET oldest_version = schema_version")
	a := call(t, dial(t, old), "PUT", "/v1/locks/free", "{}", 503)
	if a.Code != "store_unavailable" && a.Code != "draining" {
		t.Errorf("an acquire is told %s", a.Code)
	}
	if a := <-atOld; a.Status != 503 || a.Code != "draining" {
		t.Errorf("who waits at the old one is told: %d %s", a.Status, a.Code)
	}
	if err := old.expect("GET", "/readyz", 503); err != nil {
		t.Error(err)
	}
	if err := old.expect("GET", "/healthz", 200); err != nil {
		t.Error(err)
	}
	// A held lock stays held: it is renewed beyond the lease that it had.
	old.await("renewing", func() error {
		if now := pgtest.Query[time.Time](t, url, expiry); now.Sub(before) < longTTL {
			return fmt.Errorf("the lease ends %s later than before", now.Sub(before))
		}
		return nil
	})
	call(t, holder, "PATCH", "/v1/locks/kept", fmt.Sprintf(`{"token":%d}`, token), 200)
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.locks WHERE key = 'free'"); n != 0 {
		t.Error("the old one has taken a lock")
	}
	call(t, holder, "DELETE", fmt.Sprintf("/v1/locks/kept?token=%d", token), "", 200)
	if a := <-atNew; a.Status != 200 {
		t.Errorf("who waits at the new one: %d %s", a.Status, a.Code)
	}
	if code := old.code(); code != exitConfig {
		t.Errorf("the old one ends with %d", code)
	}
	schema := pgtest.Query[int32](t, url, "SELECT schema_version FROM locksidecar.meta")
	why := fmt.Sprintf("this sidecar is too old for the database: it was built for schema version %s, the database needs %d or later: "+
		"run a newer release of locksidecar", oldSchema(t), schema)
	old.saidOnce("level=ERROR", "the database needs a newer locksidecar", "previous: "+why)
	if lines := strings.Split(strings.TrimSpace(old.said()), "\n"); lines[len(lines)-1] != "locksidecar: previous: "+why {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}

	old.run(built.previous)
	if code := old.code(); code != exitConfig {
		t.Errorf("started again, the old one ends with %d", code)
	}
	if n := strings.Count(old.said(), "\nlocksidecar: previous: "+why+"\n"); n != 2 {
		t.Errorf("it has said %d times why:\n%s", n, old.said())
	}
	call(t, other, "PUT", "/v1/locks/free", "{}", 200)

	// This app holds a lock for ever, asks for nothing, and is told to stop.
	busy.await("not ready", func() error { return busy.expect("GET", "/readyz", 503) })
	busy.stop()
	later.stop()
}

// oldSchema is what the previous release brings a database to.
func oldSchema(t *testing.T) string {
	t.Helper()
	url := cluster.NewDatabase(t)
	if out, err := newPod(t, "first", url).command(built.previous, "migrate").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return fmt.Sprint(pgtest.Query[int32](t, url, "SELECT schema_version FROM locksidecar.meta"))
}

func dial(t *testing.T, p *pod) *wire.Conn {
	t.Helper()
	conn, err := wire.Dial(p.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func call(t *testing.T, conn *wire.Conn, method, path, body string, status int) wire.Answer {
	t.Helper()
	a, err := conn.Call(patience, method, path, body)
	if err != nil || a.Status != status {
		t.Fatalf("%s %s: %d %s %s %v, want %d", method, path, a.Status, a.Code, a.Detail, err, status)
	}
	return a
}

// wait waits in the queue for a key, and returns when it does.
func wait(t *testing.T, p *pod, key string) <-chan wire.Answer {
	t.Helper()
	conn, answered := dial(t, p), make(chan wire.Answer, 1)
	go func() {
		a, err := conn.Call(patience, "PUT", "/v1/locks/"+key, `{"wait_ms":-1}`)
		if err != nil {
			a.Detail = err.Error()
		}
		answered <- a
	}()
	p.await("in line", func() error {
		if pgtest.Query[int64](t, p.database, "SELECT count(*) FROM locksidecar.waiters WHERE key = '"+key+"'") == 0 {
			return fmt.Errorf("nobody waits for %s", key)
		}
		return nil
	})
	return answered
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
