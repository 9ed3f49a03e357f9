package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const (
	migratorRole = "locksidecar_migrator"
	sidecarRole  = "locksidecar"

	insufficientPrivilege = "42501" // SQLSTATE
)

// as is the URL of a database for another role.
func as(t *testing.T, role, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// makeRoles runs deploy/roles.sql with psql, as an administrator who is no superuser.
func makeRoles(t *testing.T, database string) {
	t.Helper()
	makeRole(t, database, "admin", "LOGIN CREATEROLE", "CREATE, CONNECT")
	runScript(t, as(t, "admin", database))
}

func runScript(t *testing.T, database string) {
	t.Helper()
	if out, err := psqlScript(database).CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
}

// psqlScript is psql with deploy/roles.sql, and what comes before it.
func psqlScript(database string, before ...string) *exec.Cmd {
	args := append([]string{"--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"}, before...)
	return exec.Command("psql", append(args, "-f", "../deploy/roles.sql", database)...)
}

// makeRole makes a role, unless it is there, that has rights on the database.
func makeRole(t *testing.T, database, name, options, rights string) {
	t.Helper()
	execute(t, database, fmt.Sprintf(`DO $$ BEGIN
		IF to_regrole('%[1]s') IS NULL THEN CREATE ROLE %[1]s %[2]s; END IF;
		EXECUTE format('GRANT %[3]s ON DATABASE %%I TO %[1]s WITH GRANT OPTION', current_database());
	END $$`, name, options, rights))
}

// execute runs statements on a connection of its own.
func execute(t *testing.T, database, sql string) {
	t.Helper()
	if err := tryExecute(t, database, sql); err != nil {
		t.Fatal(err)
	}
}

func tryExecute(t *testing.T, database, sql string) error {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// migrateAs runs `locksidecar migrate`.
func migrateAs(t *testing.T, role, database string) (string, error) {
	t.Helper()
	cmd := exec.Command(binary, "migrate")
	cmd.Env = append(cleanEnv(), "LOCKSIDECAR_STORE_URL="+as(t, role, database))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRoles: with the roles of deploy/roles.sql one migrates, and sidecars do all that
// they do, and no more.
func TestRoles(t *testing.T) {
	_, database := onPostgres(t)
	makeRoles(t, database)
	o := options{"STORE_URL": as(t, sidecarRole, database), "AUTO_MIGRATE": "false", "ALLOW_FORCE": "true"}

	// Before the migration a sidecar says what is missing, and comes up by itself after it.
	early := launch(t, folder(t), o.with(options{"POD": "early"}))
	early.await("the log to say what to do", func() bool { return len(early.logged("run `locksidecar migrate`")) > 0 })
	if out, err := migrateAs(t, sidecarRole, database); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("the sidecar's role may migrate: %v, %s", err, out)
	}
	if out, err := migrateAs(t, migratorRole, database); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	early.await("ready", early.tryReady)
	makeRoles(t, database) // again, which takes back what default privileges gave too much
	t.Run("does its work", func(t *testing.T) { roleWorks(t, early, o) })
	t.Run("sweeps", func(t *testing.T) { roleSweeps(t, database) })
	t.Run("begins an epoch", func(t *testing.T) { roleBeginsEpoch(t, database, o) })
	t.Run("may do no more", func(t *testing.T) { roleIsRefused(t, database) })
	t.Run("later migrations", func(t *testing.T) { roleCoversLater(t, database) })
}

// TestRolesTakeOver: where sidecars have migrated by themselves until now, they go on under
// the roles, and the migrator may change what theirs has made.
func TestRolesTakeOver(t *testing.T) {
	_, database := onPostgres(t)
	makeRole(t, database, "former", "LOGIN", "CREATE")
	former := start(t, options{"STORE_URL": as(t, "former", database)})
	// As the file says, by an administrator who is no superuser.
	makeRole(t, database, "admin", "LOGIN CREATEROLE", "CREATE, CONNECT")
	execute(t, database, "GRANT former TO admin WITH ADMIN OPTION")
	admin := as(t, "admin", database)
	runScript(t, admin)
	execute(t, admin, "GRANT former TO "+migratorRole)
	next := start(t, options{"STORE_URL": as(t, sidecarRole, database), "AUTO_MIGRATE": "false"})
	exchange(t, former, next)
	roleIsRefused(t, database)
	if out, err := migrateAs(t, migratorRole, database); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("%v: %s", err, out)
	}
	execute(t, as(t, migratorRole, database), "ALTER TABLE locksidecar.locks ADD later integer")
	roleCoversLater(t, database)
	// The functions need not be everybody's.
	execute(t, database, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA locksidecar FROM PUBLIC")
	exchange(t, former, next)
}

// TestRolesOfOwner: where the sidecars' role is the one that has migrated until now, it owns the
// schema, and no grant would take that from it: roles.sql says so, and what to do.
func TestRolesOfOwner(t *testing.T) {
	_, database := onPostgres(t)
	makeRole(t, database, sidecarRole, "LOGIN", "CREATE")
	former := start(t, options{"STORE_URL": as(t, sidecarRole, database)})
	out, err := psqlScript(database).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "owns the schema") || !strings.Contains(string(out), "REASSIGN OWNED") {
		t.Fatalf("%v: %s", err, out)
	}
	exchange(t, former, former) // as if nothing had happened

	takeOver := psqlScript(database, "-1", "-c", "REASSIGN OWNED BY "+sidecarRole+" TO "+migratorRole)
	if out, err := takeOver.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	execute(t, database, fmt.Sprintf(`DO $$ BEGIN
		EXECUTE format('REVOKE CREATE ON DATABASE %%I FROM %s', current_database());
	END $$`, sidecarRole))
	next := start(t, options{"STORE_URL": as(t, sidecarRole, database), "AUTO_MIGRATE": "false"})
	exchange(t, former, next)
	roleIsRefused(t, database)
	if out, err := migrateAs(t, migratorRole, database); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("%v: %s", err, out)
	}
	roleCoversLater(t, database)
}

func roleWorks(t *testing.T, early *sidecar, o options) {
	one, two := start(t, o.with(options{"TTL": "2s", "POD": "one"})), start(t, o.with(options{"POD": "two"}))
	exchange(t, one, two)

	// A session that is asked to stop, and watched.
	a, b := dial(t, one.socket), dial(t, two.socket)
	session := openSession(t, one.socket, "")
	events, _ := watchKey(t, two.socket, "job:1")
	token := a.acquire("job:1", `{"min_hold_ms":500,"data":{"n":1}}`, session.joins())
	events.sees("acquired")
	b.call("POST", stopPath("job:1"), `{"reason":"deploy"}`).want(202, "")
	session.want("stop")
	a.call("PATCH", lockPath("job:1"), fmt.Sprintf(`{"token":%d,"data":2}`, token), session.joins()).want(200, "")
	a.release("job:1", token, session.joins())
	events.sees("stopping", "released")

	// Many at once; a lock of nobody's session; what is listed, and counted.
	several := dial(t, two.socket)
	several.call("POST", "/v1/locks", `{"keys":["many:1","many:2","many:3"]}`).want(200, "")
	cron := a.acquire("cron:1", `{"bind":"ttl","ttl_ms":60000}`)
	list := b.call("GET", "/v1/locks?scope=all", "").want(200, "")
	for _, key := range []string{"cron:1", "many:1", "many:3"} {
		if !strings.Contains(string(list.body), key) {
			t.Errorf("%s is not listed: %s", key, list.body)
		}
	}
	if stats := one.command("stats"); !strings.Contains(stats, "many") {
		t.Errorf("stats: %s", stats)
	}
	eventually(t, "the figures of the fleet", func() bool {
		_, there := one.figures().value(`locksidecar_fleet_locks{lock_namespace="default",type="many"}`)
		return there
	})
	b.call("DELETE", lockPath("cron:1")+"?force=true", "").want(200, "")
	a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("cron:1"), cron), "").status4xx()

	// A dead sidecar's lock is had by who waits for it: its lease is buried.
	holder := dial(t, one.socket)
	left := holder.acquire("left", "")
	waiter := dial(t, early.socket)
	waiter.send("PUT", lockPath("left"), `{"wait_ms":-1}`)
	two.awaitQueue("left", 1)
	one.kill()
	if next := waiter.read("PUT", lockPath("left")).granted(); next <= left {
		t.Errorf("token %d after %d", next, left)
	}
	for _, s := range []*sidecar{early, one, two} {
		s.noErrors()
		if denied := s.logged("permission denied"); len(denied) > 0 {
			t.Errorf("a right is missing: %s", denied[0])
		}
	}
}

// roleSweeps tidies at once what a sidecar does every ten minutes: there is something for
// each of the steps.
func roleSweeps(t *testing.T, database string) {
	execute(t, database, `
		INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
		SELECT gen_random_uuid(), 'gone', 'gone', true, '1s', clock_timestamp() - interval '1 hour';
		INSERT INTO locksidecar.locks (namespace, key, token, lease_id, grant_id)
		SELECT 'swept', 'dangling', nextval('locksidecar.tokens'), gen_random_uuid(), gen_random_uuid();
		INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
		SELECT 'swept', 'forgotten', nextval('locksidecar.tokens'), clock_timestamp() - interval '2 days';
		INSERT INTO locksidecar.waiters (grant_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'swept', 'waiter', gen_random_uuid();
		INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, requested_at)
		SELECT gen_random_uuid(), 'swept', 'signal', 1, 'stop', clock_timestamp();
		INSERT INTO locksidecar.watchers (namespace, key, lease_id)
		SELECT 'swept', 'watcher', gen_random_uuid()`)
	s, err := postgres.New(postgres.Config{
		URL:      as(t, sidecarRole, database),
		Identity: store.Identity{Namespace: "swept", Instance: "sweeper", Pod: "sweeper"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	eventually(t, "the store", func() bool { return s.Ready() == nil })
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	const left = `SELECT (SELECT count(*) FROM locksidecar.leases WHERE instance = 'gone') +
		(SELECT count(*) FROM locksidecar.locks WHERE namespace = 'swept' AND (key = 'forgotten' OR lease_id IS NOT NULL)) +
		(SELECT count(*) FROM locksidecar.waiters WHERE namespace = 'swept') +
		(SELECT count(*) FROM locksidecar.signals WHERE namespace = 'swept') +
		(SELECT count(*) FROM locksidecar.watchers WHERE namespace = 'swept')`
	if n := pgtest.Query[int64](t, database, left); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// roleBeginsEpoch makes the database look like a standby that was promoted.
func roleBeginsEpoch(t *testing.T, database string, o options) {
	s := start(t, o)
	a := dial(t, s.socket)
	before := a.acquire("epoch", "")
	a.release("epoch", before)
	execute(t, database, "UPDATE locksidecar.meta SET epoch = '00000000'")
	if after := a.acquire("epoch", ""); after < before+1<<30 {
		t.Errorf("token %d after %d: no epoch began", after, before)
	}
}

func roleIsRefused(t *testing.T, database string) {
	for _, sql := range []string{
		"CREATE TABLE locksidecar.mine (i integer)",
		"CREATE SCHEMA mine",
		"ALTER TABLE locksidecar.locks ADD mine integer",
		"DROP TABLE locksidecar.locks",
		"TRUNCATE locksidecar.locks",
		"CREATE INDEX ON locksidecar.locks (token)",
		"CREATE OR REPLACE FUNCTION locksidecar.in_epoch() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"UPDATE locksidecar.meta SET oldest_version = 1000000",
		"DELETE FROM locksidecar.meta",
		"INSERT INTO locksidecar.goose_db_version (version_id, is_applied) VALUES (1000000, true)",
		"SELECT setval('locksidecar.tokens', 1)",
		"SET ROLE " + migratorRole,
	} {
		err := tryExecute(t, as(t, sidecarRole, database), sql)
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != insufficientPrivilege {
			t.Errorf("%s: %v, want it refused for lack of privilege", sql, err)
		}
	}
}

// roleCoversLater: what a later migration makes can be used without another grant.
func roleCoversLater(t *testing.T, database string) {
	execute(t, as(t, migratorRole, database), `
		CREATE TABLE locksidecar.later (i integer);
		CREATE SEQUENCE locksidecar.counter;
		CREATE FUNCTION locksidecar.count() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('locksidecar.counter') $$;
		REVOKE EXECUTE ON FUNCTION locksidecar.count() FROM PUBLIC;
		INSERT INTO locksidecar.later SELECT 1`)
	execute(t, as(t, sidecarRole, database), "UPDATE locksidecar.later SET i = i + 1; DELETE FROM locksidecar.later WHERE i = 0")
	if n := pgtest.Query[int64](t, as(t, sidecarRole, database), "SELECT locksidecar.count() + i FROM locksidecar.later"); n != 3 {
		t.Errorf("got %d, want 3", n)
	}
}
