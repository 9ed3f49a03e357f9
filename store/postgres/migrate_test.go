package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func TestManyMigrateAtOnce(t *testing.T) {
	url := cluster.NewDatabase(t)
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
	url := cluster.NewDatabase(t)
	stores := make([]store.Store, 20)
	for i := range stores {
		stores[i] = backend{tb: t, url: url}.Open(store.Identity{Namespace: "n", Instance: uuid.NewString(), Pod: "p"})
		t.Cleanup(stores[i].Stop)
		if err := stores[i].Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range stores {
		awaitReady(t, s)
		want(t, acquire(t, s, askFor(uuid.NewString(), openLease(t, s, time.Minute))), store.Granted)
	}
}

func TestCurrentSchemaNeedsNoRightsToChangeIt(t *testing.T) {
	url := cluster.NewDatabase(t)
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	role := "app_" + strings.ReplaceAll(uuid.NewString()[:8], "-", "")
	admin := connect(t, url)
	exec(t, admin, "CREATE ROLE "+role+" LOGIN")
	exec(t, admin, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	exec(t, admin, "GRANT USAGE ON SCHEMA locksidecar TO "+role)
	exec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA locksidecar TO "+role)
	exec(t, admin, "REVOKE INSERT, UPDATE, DELETE ON locksidecar.meta FROM "+role)
	exec(t, admin, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA locksidecar TO "+role)

	appURL := strings.Replace(url, "postgres@", role+"@", 1)
	app := connect(t, appURL)
	if _, err := app.Exec(t.Context(), "CREATE TABLE locksidecar.mine (n int)"); err == nil {
		t.Fatal("the role may create tables: the test proves nothing")
	}

	s := startStore(t, appURL, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	lease, ttlAsk := openLease(t, s, time.Minute), askFor("ttl", uuid.Nil)
	ttlAsk.TTL = time.Minute
	want(t, acquire(t, s, ttlAsk), store.Granted)
	first, second := askFor("k", lease), askFor("k", lease)
	granted := want(t, acquire(t, s, first), store.Granted)
	want(t, enqueue(t, s, second), store.Queued)
	release(t, s, store.Claim{Key: "k", Token: granted.Token, Lease: lease})
	want(t, check(t, s, second), store.Granted)
	if err := s.Watch(t.Context(), []string{"k"}, lease); err != nil {
		t.Error(err)
	}
	if standings, err := s.Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: "k"}}); err != nil || standings[0] != store.Holds {
		t.Error(standings, err)
	}
	if signals, err := s.Signals(t.Context(), []store.LeaseID{lease}); err != nil || len(signals) != 1 {
		t.Error(signals, err)
	}
	if err := s.Unwatch(t.Context(), []string{"k"}); err != nil {
		t.Error(err)
	}
	if e, err := s.Elect(t.Context(), time.Minute); err != nil || !e.Elected {
		t.Error(e, err)
	}
	if err := s.Bury(t.Context(), []store.LeaseID{lease}); err != nil {
		t.Error(err)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	// A failover needs what the role may not: the function may.
	exec(t, admin, "UPDATE locksidecar.meta SET epoch = 'another'")
	if after := want(t, acquire(t, s, askFor("after", openLease(t, s, time.Minute))), store.Granted); after.Token < granted.Token+jump {
		t.Errorf("token %d after %d on another timeline", after.Token, granted.Token)
	}
	writes := pgtest.Query[int64](t, url, "SELECT count(*) FROM locksidecar.goose_db_version")
	if writes != 5 { // goose's own first row, and one for each migration
		t.Errorf("%d rows in goose's table, want 5: somebody migrated", writes)
	}
}

func TestOldSchemaWithoutAutoMigrateIsNotReady(t *testing.T) {
	url := cluster.NewDatabase(t)
	s, err := postgres.New(postgres.Config{URL: url, Identity: store.Identity{Namespace: "n", Instance: "i", Pod: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll(t, "it says what to do", func() bool {
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "locksidecar migrate")
	})
	_, err = s.Get(t.Context(), []string{"k"})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("Get: %v, want a failure that did nothing", err)
	}
	if got := pgtest.Query[bool](t, url, "SELECT to_regnamespace('locksidecar') IS NULL"); !got {
		t.Error("a schema was made")
	}
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, s)
}

func TestTooOldForTheSchemaIsNotReady(t *testing.T) {
	url := cluster.NewDatabase(t)
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	exec(t, connect(t, url), "UPDATE locksidecar.meta SET schema_version = 1001, oldest_version = 1000")
	s := backend{tb: t, url: url}.Open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	poll(t, "it says that it is too old", func() bool {
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "too old") && strings.Contains(err.Error(), "1000")
	})
}
