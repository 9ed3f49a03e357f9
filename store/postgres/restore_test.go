package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// backedUp is a database like one from a backup: a lock is held, and its last renewal is missing.
type backedUp struct {
	t      *testing.T
	url    string
	held   store.LeaseID
	s      *postgres.Store
	custom []byte // a dump of the database
}

var restorer = store.Identity{Namespace: "n", Instance: "i", Pod: "p"}

func newBackedUp(t *testing.T, url string) *backedUp {
	t.Helper()
	s := startStore(t, url, restorer)
	b := &backedUp{t: t, url: url, held: openLease(t, s, time.Hour), s: s}
	want(t, acquire(t, s, askFor("held", b.held)), store.Granted)
	exec(t, connect(t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min'")
	return b
}

// goesOn makes further grants, which the backup does not have, and returns the last token.
func (b *backedUp) goesOn() (last int64) {
	b.t.Helper()
	lease := openLease(b.t, b.s, time.Hour)
	for range 100 {
		last = want(b.t, acquire(b.t, b.s, askFor(uuid.NewString(), lease)), store.Granted).Token
	}
	b.s.Stop()
	return last
}

// isSafe checks a restored database: tokens keep growing, and no lease of the backup is reaped
// before its holder could renew it.
func (b *backedUp) isSafe(url string, last int64) {
	b.t.Helper()
	s := startStore(b.t, url, restorer)
	defer s.Stop()
	mine := openLease(b.t, s, time.Hour)
	if a := want(b.t, acquire(b.t, s, askFor(uuid.NewString(), mine)), store.Granted); a.Token <= last {
		b.t.Errorf("token %d after %d", a.Token, last)
	}
	want(b.t, acquire(b.t, s, askFor("held", mine)), store.Held)
	// The extension happens once. Then the lease is dead like any other.
	exec(b.t, connect(b.t, url), "UPDATE locksidecar.leases SET expires_at = clock_timestamp() - interval '1 min' WHERE id = $1", b.held)
	want(b.t, acquire(b.t, s, askFor("held", mine)), store.Granted)
}

// A dump restores old tokens. The next statement notices every kind of restore before it grants.
// Proves: promise 3, rule restore
func TestARestoredDump(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]func(t *testing.T, b *backedUp, dump []byte) (url string){
		"into another server": func(t *testing.T, _ *backedUp, dump []byte) string {
			t.Helper()
			other := pgtest.Start(t, pgtest.WithoutFsync())
			url := other.NewDatabase(t)
			other.Tool(t, dump, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", url)
			return url
		},
		"in its place": func(t *testing.T, b *backedUp, dump []byte) string {
			t.Helper()
			exec(t, connect(t, b.url), "DROP SCHEMA locksidecar CASCADE")
			cluster.Tool(t, dump, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null", b.url)
			return b.url
		},
		"only the rows": func(t *testing.T, b *backedUp, _ []byte) string {
			t.Helper()
			exec(t, connect(t, b.url), `TRUNCATE locksidecar.meta, locksidecar.leases, locksidecar.locks, locksidecar.waiters,
				locksidecar.signals, locksidecar.watchers, locksidecar.fleet, locksidecar.sweep, locksidecar.goose_db_version`)
			cluster.Tool(t, b.custom, "pg_restore", "--exit-on-error", "--data-only", "--dbname="+b.url)
			return b.url
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackedUp(t, cluster.NewEmptyDatabase(t)) // the database's owner makes the dump
			b.custom = cluster.Tool(t, nil, "pg_dump", "--format=custom", b.url)
			dump := cluster.Tool(t, nil, "pg_dump", "--column-inserts", "--schema=locksidecar", b.url)
			last := b.goesOn()
			b.isSafe(restore(t, b, dump), last)
		})
	}
}

// A backup from before an upgrade replaces the schema under running sidecars. Their next statement
// notices it. They report it, and neither grant nor renew. They continue when the schema is right
// again.
// Proves: trap migration, rule restore
func TestAnOlderSchemaIsRestored(t *testing.T) {
	t.Parallel()
	const none = "DROP SCHEMA locksidecar CASCADE"
	for name, older := range map[string]string{
		"none":                                none,
		"without functions":                   "DROP FUNCTION locksidecar.history(), locksidecar.may_take(integer)",
		"without tables":                      "DROP TABLE locksidecar.signals",
		"without a column":                    "ALTER TABLE locksidecar.leases DROP COLUMN history",
		"with everything that a renewal uses": "SELECT",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := cluster.NewEmptyDatabase(t)
			migrate(t, url)
			s := only(t, postgres.Config{URL: url}, restorer)
			start(t, s, nil)
			lease := openLease(t, s, time.Hour)
			want(t, acquire(t, s, askFor("held", lease)), store.Granted)

			conn, says := connect(t, url), "the database has no locksidecar schema: run `locksidecar migrate`"
			exec(t, conn, older)
			if older != none {
				exec(t, conn, "UPDATE locksidecar.meta SET schema_version = schema_version - 1")
				if version := postgres.SchemaVersion - 1; version > 0 {
					says = fmt.Sprintf("the database's schema is version %d, this sidecar needs %d: run `locksidecar migrate`", version, postgres.SchemaVersion)
				}
			}
			_, _ = s.Renew(t.Context(), []store.LeaseID{lease}) // the only statement
			poll(t, "the error to name the cause", func() bool { why := s.Ready(); return why != nil && why.Error() == says })
			if r, err := s.Renew(t.Context(), []store.LeaseID{lease}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
				t.Errorf("renewal: %+v, %v", r, err)
			}
			if a, err := s.Acquire(t.Context(), []store.Ask{askFor("k", lease)}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
				t.Errorf("acquire: %+v, %v", a, err)
			}

			exec(t, conn, "DROP SCHEMA IF EXISTS locksidecar CASCADE")
			migrate(t, url)
			awaitReady(t, s)
			want(t, acquire(t, s, askFor("k", openLease(t, s, time.Hour))), store.Granted)
		})
	}
}

// A copy of the server's files, such as a snapshot of its disk, may restore old tokens without a
// trace. So the operator must call restored(). After a recovery from a base backup this is not
// necessary, because the server is on a new timeline.
// Proves: promise 3, rule restore
func TestARestoredCopy(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgtest.WithSetting("restore_command", "false"))
	for name, again := range map[string]func(t *testing.T, url string, last int64){
		"started": func(t *testing.T, url string, last int64) {
			t.Helper()
			own.Restart(t)
			if token := pgtest.Query[int64](t, url, "SELECT max(token) FROM locksidecar.locks"); token >= last {
				t.Fatalf("token %d after %d: the copy is not older", token, last)
			}
			if token := pgtest.Query[int64](t, url, "SELECT locksidecar.restored()"); token <= last {
				t.Errorf("token %d after %d", token, last)
			}
		},
		"recovered": func(t *testing.T, _ string, _ int64) {
			t.Helper()
			own.Recover(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackedUp(t, own.NewDatabase(t))
			b.s.Stop()
			back := own.Copy(t)
			own.Restart(t)
			b.s = startStore(t, b.url, restorer)
			last := b.goesOn()
			back()
			again(t, b.url, last)
			b.isSafe(b.url, last)
		})
	}
}

// Each call of restored() begins a new history, also without grants in between.
func TestRestoredTwice(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	history := func() string { return pgtest.Query[string](t, s.url, "SELECT server FROM locksidecar.meta") }
	restored := func() int64 { return pgtest.Query[int64](t, s.url, "SELECT locksidecar.restored()") }
	was, first := history(), restored()
	is := history()
	if second := restored(); second < first+jump {
		t.Errorf("token %d after %d", second, first)
	}
	if was == is || is == history() {
		t.Error("two histories have the same name")
	}
	// Other changes of the row, by a migration, do not begin a history.
	exec(t, s.conn, "UPDATE locksidecar.meta SET schema_version = schema_version, server = server")
	last := lastToken(t, s.url)
	if a := want(t, acquire(t, s, askFor("k", s.lease)), store.Granted); a.Token >= last+jump {
		t.Errorf("token %d after %d", a.Token, last)
	}
}

// Tokens grow when the schema is dropped, or the database is replaced by an empty one. A running
// sidecar creates the schema again.
// Proves: promise 3, rule restore
func TestTokensGrowOverANewSchema(t *testing.T) {
	t.Parallel()
	s := newSceneOn(t, cluster.NewEmptyDatabase(t)) // the database's owner may create the schema
	last := want(t, acquire(t, s, askFor("held", s.lease)), store.Granted).Token
	exec(t, s.conn, "DROP SCHEMA locksidecar CASCADE")
	poll(t, "the schema to be created again", func() bool {
		_, _ = s.Get(t.Context(), []string{"held"}) // the store notices that the schema is missing
		return pgtest.Query[bool](t, s.url, "SELECT to_regproc('locksidecar.sweep_step') IS NOT NULL")
	})
	awaitReady(t, s)
	lease := openLease(t, s, time.Hour)
	if token := want(t, acquire(t, s, askFor("held", lease)), store.Granted).Token; token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	// A promotion just afterwards jumps from the clock by the usual distance.
	exec(t, s.conn, "UPDATE locksidecar.meta SET server = 'another'")
	least := leastPromoted(t, s.url)
	if a := want(t, acquire(t, s, askFor("k", lease)), store.Granted); a.Token < least || a.Token >= least+jump {
		t.Errorf("token %d, want just above %d", a.Token, least)
	}
}
