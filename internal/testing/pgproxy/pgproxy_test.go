package pgproxy_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

var cluster *pgtest.Cluster

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, &cluster, pgtest.WithoutFsync())) }

const (
	patience = 20 * time.Second
	add      = "/* locksidecar:add */ INSERT INTO n VALUES ($1) RETURNING n"
	count    = "SELECT count(*) FROM n"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// start returns a proxy to a database with the table n.
func start(t *testing.T) (*pgproxy.Proxy, string) {
	t.Helper()
	url := cluster.NewDatabase(t)
	exec(t, connect(t, url), "CREATE TABLE n (n int)")
	return pgproxy.Start(t, url), url
}

func TestCutStages(t *testing.T) {
	for _, c := range []struct {
		stage pgproxy.Stage
		rows  int64 // rows that the server has committed
		seen  bool  // the client got the row
	}{
		{pgproxy.BeforeSend, 0, false},
		{pgproxy.AfterSend, 1, false},
		{pgproxy.AfterCommandComplete, 1, true},
	} {
		for name, mode := range map[string]pgx.QueryExecMode{
			"prepared": pgx.QueryExecModeCacheStatement, "unnamed": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
		} {
			t.Run(c.stage.String()+" "+name, func(t *testing.T) {
				proxy, url := start(t)
				conn := connect(t, proxy.URL())
				cut := proxy.Cut(pgproxy.Cut{Statement: "add", Stage: c.stage})
				rows, err := conn.Query(t.Context(), add, mode, 1)
				seen := false
				if err == nil {
					seen = rows.Next()
					rows.Close()
					err = rows.Err()
				}
				if err == nil {
					t.Fatal("the client got a success")
				}
				if seen != c.seen {
					t.Errorf("the client saw the row: %v, want %v", seen, c.seen)
				}
				select {
				case <-cut.Done(): // the client may notice the cut first
				case <-time.After(patience):
				}
				if cut.Fired() != 1 {
					t.Errorf("the cut fired %d times", cut.Fired())
				}
				for began := time.Now(); pgtest.Query[int64](t, url, count) != c.rows; {
					if time.Since(began) > patience {
						t.Fatalf("want %d rows", c.rows)
					}
				}
				exec(t, connect(t, proxy.URL()), add, 2) // the cut was for one statement
				if n := pgtest.Query[int64](t, url, count); n != c.rows+1 {
					t.Errorf("%d rows in the end, want %d", n, c.rows+1)
				}
			})
		}
	}
}

func TestOn(t *testing.T) {
	proxy, url := start(t)
	conn := connect(t, proxy.URL())
	var before, after int64
	on := proxy.On("add", pgproxy.BeforeSend, func() { before = pgtest.Query[int64](t, url, count) })
	proxy.On("add", pgproxy.AfterCommandComplete, func() { after = pgtest.Query[int64](t, url, count) })
	for i := range 3 {
		exec(t, conn, add, i)
	}
	if on.Fired() != 3 || before != 2 || after != 3 {
		t.Errorf("fired %d times; before the last %d rows, after it %d", on.Fired(), before, after)
	}
}

func TestDisarm(t *testing.T) {
	proxy, url := start(t)
	conn := connect(t, proxy.URL())
	on := proxy.On("add", pgproxy.BeforeSend, func() {})
	cut := proxy.Cut(pgproxy.Cut{Statement: "add", Stage: pgproxy.BeforeSend, Times: 9})
	on.Disarm()
	cut.Disarm()
	later := proxy.On("add", pgproxy.BeforeSend, func() {})
	exec(t, conn, add, 1)
	if on.Fired() != 0 || cut.Fired() != 0 || later.Fired() != 1 {
		t.Errorf("fired %d and %d times after Disarm; a later one %d times", on.Fired(), cut.Fired(), later.Fired())
	}
	if n := pgtest.Query[int64](t, url, count); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestOutages(t *testing.T) {
	proxy, url := start(t)
	conn := connect(t, proxy.URL())
	if n := proxy.CutAll(); n != 1 {
		t.Errorf("%d connections were cut, want 1", n)
	}
	if _, err := conn.Exec(t.Context(), add, 1); err == nil {
		t.Error("a connection still worked after CutAll")
	}
	proxy.Refuse(true)
	if _, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		t.Error("a connection was not refused")
	}
	proxy.Refuse(false)
	conn = connect(t, proxy.URL())
	exec(t, conn, add, 1)

	proxy.Stall(true)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), add, 2)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("a statement passed through a stalled proxy: %v", err)
	case <-time.After(50 * time.Millisecond): // no answer may come in this time
	}
	proxy.Stall(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := pgtest.Query[int64](t, url, count); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// TestNotifications: a notification waits for the test, or is lost. What comes after it arrives.
func TestNotifications(t *testing.T) {
	proxy, url := start(t)
	conn := connect(t, proxy.URL())
	exec(t, conn, "LISTEN c")
	arrived, goOn := make(chan struct{}), make(chan struct{})
	proxy.OnNotification(func(payload string) bool {
		if payload == "late" {
			close(arrived)
			<-goOn
		}
		return payload != "lost"
	})
	server := connect(t, url)
	send := func(payloads ...string) {
		for _, payload := range payloads {
			exec(t, server, "SELECT pg_notify('c', $1)", payload)
		}
	}
	heard := func(limit time.Duration) string {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err.Error()
		}
		return n.Payload
	}
	send("lost", "first")
	if got := heard(patience); got != "first" {
		t.Errorf("heard %q", got)
	}
	send("late", "lost", "last")
	<-arrived
	if got := heard(50 * time.Millisecond); got == "late" || got == "last" { // nothing may come in this time
		t.Errorf("heard %q", got)
	}
	close(goOn)
	for _, want := range []string{"late", "last"} {
		if got := heard(patience); got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
}

// TestStartUp: the messages before the first query pass, and so does a cancel request.
func TestStartUp(t *testing.T) {
	proxy, _ := start(t)
	config, err := pgx.ParseConfig(proxy.URL() + "&sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(60)")
		ended <- err
	}()
	for began := time.Now(); ; {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the statement was not cancelled")
			}
			return
		case <-time.After(10 * time.Millisecond): // the statement may not have begun
		}
		if time.Since(began) > patience {
			t.Fatal("the cancel request did not pass")
		}
	}
}
