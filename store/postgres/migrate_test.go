package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Proves: trap migration
func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	const pods = 30
	type result struct {
		from, to int
		err      error
	}
	results := make([]result, pods)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() {
			r := &results[i]
			r.from, r.to, r.err = postgres.Migrate(t.Context(), url)
		})
	}
	group.Wait()
	migrated := 0
	for _, r := range results {
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.to == 0 || r.to != results[0].to {
			t.Fatalf("migrated to %d, others to %d", r.to, results[0].to)
		}
		if r.from != r.to {
			migrated++
		}
	}
	if migrated != 1 {
		t.Errorf("%d of %d migrated, want 1", migrated, pods)
	}
}

func TestManyStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	stores := make([]*postgres.Store, 20)
	for i := range stores {
		stores[i] = backend{tb: t, url: url}.open(store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"})
		run(t, stores[i], nil)
	}
	for _, s := range stores {
		awaitReady(t, s)
		want(t, acquire(t, s, askFor(uuid.NewString(), openLease(t, s, time.Minute))), store.Granted)
	}
}

func TestOldSchemaWithoutAutoMigrateIsNotReady(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	s := only(t, postgres.Config{URL: url}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	run(t, s, nil)
	poll(t, "the advice in the error", func() bool {
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "locksidecar migrate")
	})
	_, err := s.Get(t.Context(), []string{"k"})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("Get: %v, want a failure that did nothing", err)
	}
	if got := pgtest.Query[bool](t, url, "SELECT to_regnamespace('locksidecar') IS NULL"); !got {
		t.Error("a schema was created")
	}
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
}

// Proves: trap migration
func TestTooOldForTheSchemaIsNotReady(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	outgrow(t, url)
	s, told := mayBeTooOld(t, url)
	hearTooOld(t, told)
	if err := s.Ready(); err == nil || err.Error() != tooOld {
		t.Errorf("ready: %v", err)
	}
}

// tooOld is the error of a sidecar that outgrow has made too old.
var tooOld = fmt.Sprintf("this sidecar is too old for the database: it was built for schema version %d, "+
	"the database needs 1000 or later: run a newer release of locksidecar", postgres.SchemaVersion)

// outgrow changes the version like a migration of a later release that needs newer sidecars.
func outgrow(t *testing.T, url string) {
	t.Helper()
	exec(t, connect(t, url), "UPDATE locksidecar.meta SET schema_version = 1001, oldest_version = 1000")
}

// mayBeTooOld starts a store. told receives the error when the store is too old.
func mayBeTooOld(t *testing.T, url string) (s *postgres.Store, told chan error) {
	t.Helper()
	told = make(chan error, 1)
	s = only(t, postgres.Config{
		URL: url, AutoMigrate: true,
		TooOld: func(err error) {
			select {
			case told <- err:
			default:
			}
		},
	}, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	run(t, s, nil)
	return s, told
}

func hearTooOld(t *testing.T, told <-chan error) {
	t.Helper()
	select {
	case err := <-told:
		if err.Error() != tooOld {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(patience):
		t.Errorf("no error within %s", patience)
	}
}

// Trap: a migration runs while old and new sidecars run. From the moment in which a sidecar is too
// old, it gets no lock. It still renews and releases its locks.
// Proves: trap migration
func TestTooOldSidecarTakesNothing(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s, told := mayBeTooOld(t, url)
	awaitReady(t, s)
	lease := openLease(t, s, time.Minute)
	held, waits := want(t, acquire(t, s, askFor("held", lease)), store.Granted), askFor("held", lease)
	want(t, enqueue(t, s, waits), store.Queued)
	free := []store.Ask{askFor("free 1", lease), askFor("free 2", lease)} // they have rows
	for _, ask := range free {
		release(t, s, store.Claim{Key: ask.Key, Token: want(t, acquire(t, s, ask), store.Granted).Token, Lease: lease})
	}
	outgrow(t, url)
	byTTL := askFor("by ttl", uuid.Nil)
	byTTL.TTL = time.Minute
	for what, asks := range map[string][]store.Ask{
		"one": {askFor("one", lease)}, "row": free[:1], "rows": free, "many": {askFor("a", lease), askFor("b", lease)}, "bind:ttl": {byTTL}, "both": {askFor("c", lease), byTTL},
	} {
		if answers, err := s.Acquire(t.Context(), asks); err == nil || store.OutcomeUnknown(err) {
			t.Errorf("acquire of %s: %+v, %v", what, answers, err)
		}
	}
	if answers, err := s.Enqueue(t.Context(), []store.Ask{askFor("waits", lease)}); err == nil || store.OutcomeUnknown(err) {
		t.Errorf("enqueue: %+v, %v", answers, err)
	}
	if n := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL"); n != 1 {
		t.Errorf("%d locks are held, want only the earlier one", n)
	}
	hearTooOld(t, told)
	if r, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil || len(r.Renewed) != 1 {
		t.Errorf("renewal: %+v, %v", r, err)
	}
	if v := release(t, s, store.Claim{Key: "held", Token: held.Token, Lease: lease}); v.Status != store.Holds {
		t.Errorf("release: %+v", v)
	}
	want(t, check(t, s, waits), store.Granted)
}

// A sidecar that only holds locks learns from its renewals that it is too old.
// Proves: trap migration
func TestRenewalReportsTooOldSidecar(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	s, told := mayBeTooOld(t, url)
	awaitReady(t, s)
	lease := openLease(t, s, time.Minute)
	outgrow(t, url)
	if r, err := s.Renew(t.Context(), []store.LeaseID{lease}); err != nil || len(r.Renewed) != 1 {
		t.Fatalf("renewal: %+v, %v", r, err)
	}
	hearTooOld(t, told)
}

// A statement that waits for a table blocks all later ones. Here a reader uses a table and a
// migration waits for it, but acquires continue. The table may also be meta, which contains the
// schema version.
// Proves: trap migration
func TestAMigrationDoesNotStallOthers(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]func(t *testing.T, url string) string{
		"directly":          func(_ *testing.T, url string) string { return url },
		"through PgBouncer": func(t *testing.T, url string) string { t.Helper(); return cluster.Pooler(t, url, 5) },
	} {
		t.Run(name, func(t *testing.T) { migrateBesideOthers(t, through) })
	}
}

func migrateBesideOthers(t *testing.T, through func(t *testing.T, url string) string) {
	t.Helper()
	s := hasty(t)
	url := through(t, pgtest.Admin(s.url))
	exec(t, s.other, "BEGIN; SELECT count(*) FROM locksidecar.locks")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	busy, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- postgres.MigrateFurther(ctx, t, url, `ALTER TABLE locksidecar.meta ADD COLUMN further text;
			ALTER TABLE locksidecar.locks ADD COLUMN further text;
			ALTER TABLE locksidecar.waiters ADD COLUMN further text;`, "", func(error) {
			select {
			case busy <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	for waits, n := 0, 0; waits < 3; n++ {
		select {
		case <-busy:
			waits++
		case err := <-ended:
			t.Fatalf("the migration did not wait for the table: %v", err)
		default:
		}
		// On a busy machine an acquire may find the table locked and report a locked row. It is
		// repeated.
		ask, began := askFor(fmt.Sprint("k", n), s.lease), time.Now()
		for a := acquire(t, s, ask); a.Outcome != store.Granted; a = acquire(t, s, ask) {
			if took := time.Since(began); a.Outcome != store.RowLocked || took > patience/2 {
				t.Fatalf("after %s an acquire got %+v", took, a)
			}
		}
	}
	exec(t, s.other, "ROLLBACK")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	// Connections with the old definition of the tables still work.
	first, second := want(t, acquire(t, s, askFor("after", s.lease)), store.Granted), askFor("after", s.lease)
	want(t, enqueue(t, s, second), store.Queued)
	if v := release(t, s, store.Claim{Key: "after", Token: first.Token, Lease: s.lease}); v.Status != store.Holds {
		t.Errorf("release: %+v", v)
	}
	want(t, check(t, s, second), store.Granted)
}

// A migration that waits too long for a table says in its error what to look for.
func TestAMigrationGivesUpInTheEnd(t *testing.T) {
	t.Parallel()
	s := hasty(t)
	exec(t, s.other, "BEGIN; SELECT count(*) FROM locksidecar.locks")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := postgres.MigrateFurther(ctx, t, pgtest.Admin(s.url), "ALTER TABLE locksidecar.locks ADD COLUMN further text;", "", func(error) { cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "old transactions in pg_stat_activity") {
		t.Error(err)
	}
}

// All functions and the version are replaced together or not at all. A migration that was cut off
// is continued by the next.
func TestCodeIsReplacedAsASet(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	conn := connect(t, url)
	version := func() int { return pgtest.Query[int](t, url, "SELECT schema_version FROM locksidecar.meta") }
	functions := func() string {
		return pgtest.Query[string](t, url, `SELECT string_agg(oid::regprocedure || md5(prosrc), ' ' ORDER BY oid)
			FROM pg_proc WHERE pronamespace = 'locksidecar'::regnamespace`)
	}
	const table, another = "CREATE TABLE locksidecar.further ();", `CREATE OR REPLACE FUNCTION locksidecar.in_history() RETURNS boolean
		LANGUAGE sql AS 'SELECT true';`
	fails := func() {
		t.Helper()
		if err := postgres.MigrateFurther(t.Context(), t, url, table, another+"no SQL", nil); err == nil || !strings.Contains(err.Error(), "code/z.sql") {
			t.Errorf("broken code: %v", err)
		}
	}
	fails()
	if is := version(); is != 0 || strings.Contains(functions(), "in_history") {
		t.Errorf("a new schema has version %d, functions\n%s", is, functions())
	}
	exec(t, conn, "DROP SCHEMA locksidecar CASCADE")
	migrate(t, url)
	source, before := sourceOf(t, url), functions()
	exec(t, conn, "UPDATE locksidecar.meta SET source = 'none'")
	fails()
	if is := version(); is != postgres.SchemaVersion || functions() != before {
		t.Errorf("after broken code: version %d, functions\n%s\nwere\n%s", is, functions(), before)
	}
	if err := postgres.MigrateFurther(t.Context(), t, url, table, another, nil); err != nil {
		t.Fatal(err)
	}
	if is := version(); is != postgres.SchemaVersion+1 || functions() == before {
		t.Errorf("version %d, functions\n%s", is, functions())
	}
	if source != "timeline" || sourceOf(t, url) != "none" {
		t.Errorf("the source %s became %s", source, sourceOf(t, url))
	}
}
