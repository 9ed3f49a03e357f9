package postgres_test

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// These functions are refused to all but superusers, so that the named history source is the first
// that works.
var (
	refusesWAL = []string{
		"pg_current_wal_lsn()", "pg_current_wal_insert_lsn()", "pg_walfile_name(pg_lsn)", "pg_control_system()",
		"pg_control_checkpoint()", "pg_control_recovery()", "pg_control_init()",
	}
	refusesAll = append([]string{"pg_postmaster_start_time()"}, refusesWAL...)
	refused    = map[string][]string{"timeline": nil, "server": refusesWAL, "none": refusesAll}
)

// refusing makes a database whose owner is not a superuser and must not call these functions.
func refusing(t *testing.T, c *pgtest.Cluster, functions []string) (url string) {
	t.Helper()
	made := c.NewEmptyDatabase(t)
	admin, role := connect(t, made), "owner_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, admin, "CREATE ROLE "+role+" LOGIN")
	exec(t, admin, fmt.Sprintf("ALTER DATABASE %s OWNER TO %s", configOf(t, made).Database, role))
	for _, f := range functions {
		exec(t, admin, "REVOKE EXECUTE ON FUNCTION "+f+" FROM PUBLIC")
	}
	return pgtest.As(made, role)
}

// tryAs executes a statement as the role of a URL.
func tryAs(t *testing.T, url, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), sql)
	return errors.Join(err, conn.Close(t.Context()))
}

func sourceOf(t *testing.T, url string) string {
	t.Helper()
	return pgtest.Query[string](t, url, "SELECT source FROM locksidecar.meta")
}

// withSource makes a database with a history source.
func withSource(t *testing.T, source string) (url string) {
	t.Helper()
	url = refusing(t, cluster, refused[source])
	migrate(t, url)
	if is := sourceOf(t, url); is != source {
		t.Errorf("the source is %s, want %s", is, source)
	}
	return url
}

// combinations is set in nightly runs.
var combinations = flag.Bool("combinations", false, "run the suite with each history source in each way to connect")

// The schema uses the first history source that the server allows, and locks work with each. For each change,
// TestConformance uses timeline without a pooler, and
// TestConformanceBehindPgBouncer uses none behind one, and polls. With
// -combinations all pairs run the whole suite, except a listener past a pooler with the source none: the listener
// needs the start times of both servers, which such a server refuses.
// Proves: A2, trap failover
func TestConformanceByHistorySource(t *testing.T) {
	t.Parallel()
	for source := range refused {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			url := withSource(t, source)
			if !*combinations {
				return
			}
			for way, backends := range ways {
				if source == "none" && way == "direct" {
					continue
				}
				t.Run(way, func(t *testing.T) { storetest.Run(t, backends(t, url)) })
			}
		})
	}
}

// Aurora has a timeline if wal_level is logical. It is unknown how that timeline changes in a
// failover.
// Proves: trap failover
func TestAuroraUsesTheServerSource(t *testing.T) {
	t.Parallel()
	url := refusing(t, cluster, nil)
	exec(t, connect(t, url), "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '15.4' $$")
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if is := sourceOf(t, url); is != "server" {
		t.Errorf("the source is %s", is)
	}
}

// Without a history source a sidecar works, and logs once what it cannot promise.
// Proves: trap failover
func TestNoHistorySourceIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for source, times := range map[string]int{"server": 0, "none": 1} {
		text := &logtest.Log{}
		url := refusing(t, cluster, refused[source])
		s := startWith(t, postgres.Config{
			URL: url, AutoMigrate: true, Logger: slog.New(slog.NewTextHandler(text, nil)),
			Failover: store.FailoverQuick,
		}, restorer)
		lease := openLease(t, s, time.Hour)
		for range 3 {
			exec(t, connect(t, url), "UPDATE locksidecar.meta SET server = 'another'") // makes the sidecar check the server again
			want(t, acquire(t, s, askFor(uuid.NewString(), lease)), store.Granted)
			awaitReady(t, s)
		}
		if n := strings.Count(text.String(), "no failover of the database is noticed"); n != times {
			t.Errorf("%s: logged %d times:\n%s", source, n, text)
		}
	}
}

// A right is revoked, or rows come from a server with more rights. Locks are granted only after the
// owner has chosen a source that this server allows. The choice begins one history for all.
// Proves: trap failover
func TestASourceThatIsRefused(t *testing.T) {
	t.Parallel()
	url := refusing(t, cluster, nil)
	s := startStore(t, url, restorer)
	lease := openLease(t, s, time.Hour)
	before := want(t, acquire(t, s, askFor("held", lease)), store.Granted).Token
	for _, f := range refusesWAL {
		exec(t, connect(t, url), "REVOKE EXECUTE ON FUNCTION "+f+" FROM PUBLIC")
	}
	again := only(t, postgres.Config{URL: url}, restorer)
	run(t, again, nil)
	poll(t, "the error with cause and advice", func() bool {
		why := again.Ready().Error()
		return strings.Contains(why, `history source is "timeline"`) && strings.Contains(why, "permission denied for function pg_") &&
			strings.Contains(why, "use_history_source('server')")
	})
	if a, err := s.Acquire(t.Context(), []store.Ask{askFor("k", lease)}); err == nil {
		t.Errorf("granted: %+v", a)
	}
	if err := tryAs(t, url, "SELECT locksidecar.use_history_source('server')"); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, again)
	if a := want(t, acquire(t, s, askFor("k", lease)), store.Granted); a.Token < before+jump {
		t.Errorf("token %d after %d", a.Token, before)
	}
	want(t, acquire(t, again, askFor("held", openLease(t, again, time.Hour))), store.Held)
}

// Only the owner of the schema can choose the source. Refused and unknown sources are not accepted.
// Proves: trap failover
func TestOnlyTheOwnerChoosesTheSource(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t) // a URL with the sidecars' role
	for _, sql := range []string{"SELECT locksidecar.use_history_source('none')", "UPDATE locksidecar.meta SET source = 'none'"} {
		if err := tryAs(t, url, sql); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	own := refusing(t, cluster, refusesWAL)
	if _, _, err := postgres.Migrate(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"timeline", "moon"} {
		if tryAs(t, own, "SELECT locksidecar.use_history_source('"+source+"')") == nil {
			t.Errorf("%s is accepted", source)
		}
	}
	if is := sourceOf(t, own); is != "server" {
		t.Errorf("the source is %s", is)
	}
}

// The server's identity is the same through each connection, and changes with a restart. Then
// tokens jump, and no lease ends early.
// Proves: A2, trap failover
func TestTheIdentityOfAServer(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgtest.WithTCP())
	url := refusing(t, own, refusesWAL)
	s := startStore(t, url, restorer)
	lease := openLease(t, s, time.Hour)
	before := want(t, acquire(t, s, askFor("held", lease)), store.Granted).Token
	const here = "SELECT locksidecar.here('server', '')"
	config := configOf(t, url)
	socket := fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", config.User, config.Database,
		pgtest.Query[string](t, pgtest.Admin(url), "SHOW unix_socket_directories"), config.Port)
	for name, other := range map[string]string{"socket": socket, "pooler": own.Pooler(t, url, 3), "other settings": url + "&TimeZone=Asia/Tokyo&extra_float_digits=0"} {
		if is, was := pgtest.Query[string](t, other, here), pgtest.Query[string](t, url, here); is != was {
			t.Errorf("through %s the identity is %s, not %s", name, is, was)
		}
	}
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	own.Restart(t)
	poll(t, "the server to answer", func() bool { _, err := s.Get(t.Context(), []string{"k"}); return err == nil })
	mine := openLease(t, s, time.Hour)
	if a := want(t, acquire(t, s, askFor("k", mine)), store.Granted); a.Token < before+jump {
		t.Errorf("token %d after %d", a.Token, before)
	}
	want(t, acquire(t, s, askFor("held", mine)), store.Held)
}
