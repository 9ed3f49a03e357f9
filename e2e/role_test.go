package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const insufficientPrivilege = "42501" // SQLSTATE

// ownServer starts a server with an empty database, and returns its URL. Roles belong to the whole
// server, and these tests give them other rights than other tests need.
func ownServer(t *testing.T) (database string) {
	t.Helper()
	return pgtest.Start(t, pgtest.WithoutFsync()).NewEmptyDatabase(t)
}

// makeRoles runs deploy/roles.sql with psql, as an administrator who is not a superuser.
func makeRoles(t *testing.T, database string) {
	t.Helper()
	makeRole(t, database, pgroles.Admin, "LOGIN CREATEROLE", "CREATE, CONNECT")
	runScript(t, pgtest.As(database, pgroles.Admin))
}

func runScript(t *testing.T, database string) {
	t.Helper()
	if out, err := psqlScript(database).CombinedOutput(); err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
}

// psqlScript is psql with deploy/roles.sql, after other arguments.
func psqlScript(database string, before ...string) *exec.Cmd {
	args := append([]string{"--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"}, before...)
	return exec.Command("psql", append(args, "-f", "../deploy/roles.sql", database)...)
}

// makingRoles: roles belong to the whole server. Two sessions that check for a role at the same
// time would both create it.
var makingRoles sync.Mutex

// makeRole creates a role unless it exists, with rights on the database.
func makeRole(t *testing.T, database, name, options, rights string) {
	t.Helper()
	makingRoles.Lock()
	defer makingRoles.Unlock()
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
	cmd.Env = append(cleanEnv(), "LOCKSIDECAR_STORE_URL="+pgtest.As(database, role))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestRoles: with the roles of deploy/roles.sql, one role migrates. The sidecars' role can do all
// its work, but no more.
// Proves: rule roles, threat reading role, threat sidecar role
func TestRoles(t *testing.T) {
	t.Parallel()
	database := ownServer(t)
	makeRoles(t, database)
	o := options{"STORE_URL": pgtest.As(database, pgroles.Sidecar), "AUTO_MIGRATE": "false", "ALLOW_FORCE": "true", "FAILOVER": "quick"}

	// Before the migration a sidecar logs what is missing. After the migration it becomes ready.
	early := launch(t, folder(t), o.with(options{"POD": "early"}))
	early.await("the log line with the advice", func() bool { return len(early.logged("run `locksidecar migrate`")) > 0 })
	if out, err := migrateAs(t, pgroles.Sidecar, database); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("the sidecar's role may migrate: %v, %s", err, out)
	}
	if out, err := migrateAs(t, pgroles.Migrator, database); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := tryExecute(t, pgtest.As(database, pgroles.Migrator), "CREATE SCHEMA mine"); err == nil {
		t.Error("the migrator may create other schemas")
	}
	early.await("ready", early.tryReady)
	makeRoles(t, database) // again, which revokes excess default privileges
	t.Run("does its work", func(t *testing.T) { roleWorks(t, early, o) })
	t.Run("sweeps", func(t *testing.T) { roleSweeps(t, database) })
	t.Run("begins a history", func(t *testing.T) { roleBeginsHistory(t, database, o) })
	t.Run("reads", func(t *testing.T) { roleReads(t, database, o) })
	t.Run("shows", func(t *testing.T) { roleShows(t, database, o) })
	t.Run("may do no more", func(t *testing.T) { roleIsRefused(t, database) })
	t.Run("later migrations", func(t *testing.T) { roleCoversLater(t, database) })
}

// TestRolesTakeOver: sidecars that have migrated themselves change to the new roles. The migrator
// can change their tables.
// Proves: threat sidecar role
func TestRolesTakeOver(t *testing.T) {
	t.Parallel()
	database := ownServer(t)
	makeRole(t, database, "former", "LOGIN", "CREATE")
	former := start(t, options{"STORE_URL": pgtest.As(database, "former")})
	// As the file says, an administrator who is not a superuser runs it.
	makeRole(t, database, pgroles.Admin, "LOGIN CREATEROLE", "CREATE, CONNECT")
	execute(t, database, "GRANT former TO admin WITH ADMIN OPTION")
	admin := pgtest.As(database, pgroles.Admin)
	runScript(t, admin)
	execute(t, admin, "GRANT former TO "+pgroles.Migrator)
	next := start(t, options{"STORE_URL": pgtest.As(database, pgroles.Sidecar), "AUTO_MIGRATE": "false"})
	exchange(t, former, next)
	roleIsRefused(t, database)
	if out, err := migrateAs(t, pgroles.Migrator, database); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("%v: %s", err, out)
	}
	execute(t, pgtest.As(database, pgroles.Migrator), "ALTER TABLE locksidecar.locks ADD later integer")
	roleCoversLater(t, database)
	exchange(t, former, next)
}

// TestRolesOfOwner: the sidecars' role has migrated until now, so it owns the schema. A grant
// cannot change that. roles.sql reports it, with the remedy.
func TestRolesOfOwner(t *testing.T) {
	t.Parallel()
	database := ownServer(t)
	makeRole(t, database, pgroles.Admin, "LOGIN CREATEROLE", "CONNECT") // a role without members
	makeRole(t, database, pgroles.Sidecar, "LOGIN", "CREATE")
	former := start(t, options{"STORE_URL": pgtest.As(database, pgroles.Sidecar)})
	out, err := psqlScript(database).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "owns the schema") || !strings.Contains(string(out), "REASSIGN OWNED") {
		t.Fatalf("%v: %s", err, out)
	}
	exchange(t, former, former) // the sidecars still work

	takeOver := psqlScript(database, "-1", "-c", "REASSIGN OWNED BY "+pgroles.Sidecar+" TO "+pgroles.Migrator)
	if out, err := takeOver.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	execute(t, database, fmt.Sprintf(`DO $$ BEGIN
		EXECUTE format('REVOKE CREATE ON DATABASE %%I FROM %s', current_database());
	END $$`, pgroles.Sidecar))
	next := start(t, options{"STORE_URL": pgtest.As(database, pgroles.Sidecar), "AUTO_MIGRATE": "false"})
	exchange(t, former, next)
	roleIsRefused(t, database)
	if out, err := migrateAs(t, pgroles.Migrator, database); err != nil || !strings.Contains(out, "up to date") {
		t.Errorf("%v: %s", err, out)
	}
	roleCoversLater(t, database)
}

func roleWorks(t *testing.T, early *sidecar, o options) {
	one, two := start(t, o.with(options{"TTL": "4s", "RENEW_INTERVAL": "500ms", "POD": "one"})), start(t, o.with(options{"POD": "two"}))
	exchange(t, one, two)

	// A session is asked to stop, and its key is watched.
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

	// Several keys at once, a bind:ttl lock, lists and counts.
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
	eventually(t, "the counts of the fleet", func() bool {
		_, there := one.figures().value(`locksidecar_fleet_locks{lock_namespace="default",type="many"}`)
		return there
	})
	b.call("DELETE", lockPath("cron:1")+"?force=true", "").want(200, "")
	a.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath("cron:1"), cron), "").status4xx()

	// A dead sidecar's lease is reaped, and the waiter gets its lock.
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

// roleSweeps sweeps at once, which a sidecar does every ten minutes. Each step has rows to delete.
func roleSweeps(t *testing.T, database string) {
	execute(t, database, `
		INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
		SELECT gen_random_uuid(), 'gone', 'gone', true, '1s', clock_timestamp() - interval '1 hour';
		INSERT INTO locksidecar.locks (namespace, key, token, lease_id, attempt_id)
		SELECT 'swept', 'dangling', locksidecar.token_at(clock_timestamp()), gen_random_uuid(), gen_random_uuid();
		INSERT INTO locksidecar.locks (namespace, key, token, freed_at)
		SELECT 'swept', 'forgotten', 1, clock_timestamp() - interval '2 days';
		INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id)
		SELECT gen_random_uuid(), 'swept', 'waiter', gen_random_uuid();
		INSERT INTO locksidecar.signals (lease_id, namespace, key, token, kind, requested_at)
		SELECT id, 'swept', 'signal', 1, 'stop', clock_timestamp() FROM locksidecar.leases WHERE instance = 'gone';
		INSERT INTO locksidecar.watchers (namespace, key, lease_id)
		SELECT 'swept', 'watcher', gen_random_uuid()`)
	space, err := postgres.NewSpace(postgres.Config{URL: pgtest.As(database, pgroles.Sidecar)})
	if err != nil {
		t.Fatal(err)
	}
	if err := space.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer space.Stop()
	s := space.View(store.Identity{Namespace: "swept", Instance: "sweeper", Pod: "sweeper"})
	if err := s.Start(t.Context(), nil); err != nil {
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

// roleBeginsHistory makes the database look like a promoted standby.
func roleBeginsHistory(t *testing.T, database string, o options) {
	s := start(t, o)
	a := dial(t, s.socket)
	before := a.acquire("history", "")
	a.release("history", before)
	execute(t, database, "UPDATE locksidecar.meta SET server = '00000000'")
	if after := a.acquire("history", ""); after < before+64_000_000 {
		t.Errorf("token %d after %d: no new history began", after, before)
	}
}

// forbidden are the statements that each role must not run.
var forbidden = map[string][]string{
	pgroles.Sidecar: {
		"CREATE TABLE locksidecar.mine (i integer)",
		"CREATE SCHEMA mine",
		"ALTER TABLE locksidecar.locks ADD mine integer",
		"DROP TABLE locksidecar.locks",
		"TRUNCATE locksidecar.locks",
		"CREATE INDEX ON locksidecar.locks (token)",
		"CREATE OR REPLACE FUNCTION locksidecar.in_history() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"UPDATE locksidecar.meta SET oldest_version = 1000000",
		"DELETE FROM locksidecar.meta",
		"INSERT INTO locksidecar.goose_db_version (version_id, is_applied) VALUES (1000000, true)",
		"UPDATE locksidecar.meta SET began_token = 1",
		"SELECT locksidecar.restored()",
		"SELECT locksidecar.end_quiet()",
		"SET ROLE " + pgroles.Migrator,
	},
	pgroles.Reader: {
		// Columns that would let the reader act.
		"SELECT attempt_id FROM locksidecar.locks",
		"SELECT token FROM locksidecar.locks",
		"SELECT attempt_id FROM locksidecar.waiters",
		"SELECT * FROM locksidecar.locks",
		"SELECT l FROM locksidecar.locks l",
		"COPY locksidecar.waiters TO STDOUT",
		// Data of the apps.
		"SELECT data FROM locksidecar.locks",
		"SELECT data FROM locksidecar.waiters",
		"SELECT result FROM locksidecar.waiters",
		// Tables that the reader does not need.
		"SELECT FROM locksidecar.signals",
		"SELECT FROM locksidecar.watchers",
		"SELECT FROM locksidecar.fleet",
		"SELECT FROM locksidecar.goose_db_version",
		// Statements that write, lock or call.
		"SELECT key FROM locksidecar.locks FOR UPDATE",
		"SELECT id FROM locksidecar.leases FOR KEY SHARE",
		"BEGIN; LOCK TABLE locksidecar.locks IN SHARE MODE",
		"UPDATE locksidecar.locks SET lease_id = NULL",
		"UPDATE locksidecar.leases SET expires_at = 'infinity'",
		"DELETE FROM locksidecar.leases",
		"INSERT INTO locksidecar.watchers SELECT namespace, key, lease_id FROM locksidecar.locks",
		"TRUNCATE locksidecar.waiters",
		"SELECT locksidecar.token_at(clock_timestamp())",
		"SELECT locksidecar.new_history()", // this function runs with the migrator's rights
		"SELECT locksidecar.channel('n', 'i')",
		"CREATE TABLE locksidecar.mine (i integer)",
		"CREATE SCHEMA mine",
		"SET ROLE " + pgroles.Sidecar,
	},
	pgroles.Migrator: {
		"CREATE ROLE mine",
		"SET ROLE " + pgroles.Admin,
	},
}

func roleIsRefused(t *testing.T, database string) {
	for role, statements := range forbidden {
		for _, sql := range statements {
			err := tryExecute(t, pgtest.As(database, role), sql)
			if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != insufficientPrivilege {
				t.Errorf("%s: %s: %v, want it refused for lack of privilege", role, sql, err)
			}
		}
	}
}

// roleReads runs the statements for dashboards in docs/stores.md, while an exclusive lock is
// held and waited for, and a shared lock is held.
func roleReads(t *testing.T, database string, o options) {
	statements := steps(sqlBlocks, section(t, "stores.md", "Look with SQL"), ";\n")
	if len(statements) < 3 {
		t.Fatalf("only %d statements were found: the test reads the page wrongly", len(statements))
	}
	s := start(t, o)
	holder, waiter := dial(t, s.socket), dial(t, s.socket)
	holder.acquire("shown", "")
	holder.acquire("shared", place)
	waiter.send("PUT", lockPath("shown"), `{"wait_ms":-1}`)
	s.awaitQueue("shown", 1)
	for _, sql := range statements {
		if rows(t, pgtest.As(database, pgroles.Reader), sql) == 0 {
			t.Errorf("no rows: %s", sql)
		}
	}
}

// roleShows opens the console's pages. Its sidecar has the reader's role, as in deploy/console.yaml: it sees the locks of
// other sidecars, and neither data nor tokens, and grants nothing. After a kill it is ready again.
func roleShows(t *testing.T, database string, o options) {
	writer := start(t, o.with(options{"POD": "writer"}))
	holder, sharer, waiter := dial(t, writer.socket), dial(t, writer.socket), dial(t, writer.socket)
	holder.acquire("seen:1", `{"data":{"password":"sesame"}}`)
	sharer.acquire("seen:2", place)
	waiter.send("PUT", lockPath("seen:1"), `{"wait_ms":-1}`)
	writer.awaitQueue("seen:1", 1)
	elsewhere := dial(t, start(t, o.with(options{"POD": "elsewhere", "NAMESPACE": "other"})).socket)
	elsewhere.acquire("theirs:1", `{"data":{"password":"sesame"}}`)

	dir := folder(t)
	reader := o.with(options{"STORE_URL": pgtest.As(database, pgroles.Reader), "POD": "reader"})
	startIn(t, dir, reader).kill()
	s := startIn(t, dir, reader)
	console := startConsole(t, s.socket)
	page := func(path string) string {
		t.Helper()
		status, text := openPage(t, console, path)
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
		return text
	}
	for path, texts := range map[string][]string{
		"/":                 {"seen:1", "seen:2", "writer"},
		"/key?key=seen%3A1": {"seen:1", "writer", "1 waiting"},
		"/key?key=seen%3A2": {"seen:2", "writer", "Slot"},
		"/waits":            {"seen:1"},
		"/totals":           {"seen", "/n/other/?type=theirs"},
		"/sidecars":         {"writer", "@"},

		"/n/other/":                   {"theirs:1", "elsewhere"},
		"/n/other/key?key=theirs%3A1": {"theirs:1", "elsewhere", "only keys of its own namespace"},
		"/n/other/key?key=seen%3A1":   {"Nobody holds this key now."},
		"/n/other/sidecars":           {"elsewhere"},
		"/n/default/key?key=seen%3A1": {"1 waiting"},
	} {
		shown := page(path)
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				t.Errorf("%s does not show %q: %s", path, text, shown)
			}
		}
		if strings.Contains(shown, "sesame") || strings.Contains(shown, "<dt>Token") {
			t.Errorf("%s shows what the role may not read: %s", path, shown)
		}
	}
	eventually(t, "the reason why there are no events", func() bool {
		return strings.Contains(page("/key?key=seen%3A1"), "may only read")
	})
	if about := dial(t, s.socket).call("GET", "/v1", "").want(200, ""); !strings.Contains(string(about.body), `"namespaces"`) {
		t.Errorf("%s", about.body)
	}
	if about := holder.call("GET", "/v1", "").want(200, ""); strings.Contains(string(about.body), `"namespaces"`) {
		t.Errorf("a sidecar of apps shows other namespaces: %s", about.body)
	}
	for _, path := range []string{"/v1/locks?", "/v1/waiters?", "/v1/locks/seen:1/waiters?"} {
		holder.call("GET", path+"namespace=other", "").want(501, "unsupported")
	}
	for _, body := range []string{"", `{"wait_ms":-1}`, `{"bind":"ttl"}`} {
		dial(t, s.socket).call("PUT", lockPath("mine"), body).want(501, "unsupported")
	}
	dial(t, s.socket).call("POST", stopPath("seen:1"), "").want(501, "unsupported")
	if denied := append(s.logged("permission denied"), s.logged("notifications of other instances")...); len(denied) > 0 {
		t.Errorf("a right is missing: %s", denied[0])
	}
}

// startConsole starts the console at a socket, and returns its address.
func startConsole(t *testing.T, socket string) (address string) {
	t.Helper()
	console := exec.Command(binary, "console", "--listen", "127.0.0.1:0")
	console.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+socket)
	log := &logBuffer{}
	console.Stdout, console.Stderr = log, log
	if err := console.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = console.Process.Kill(), console.Wait() })
	eventually(t, "the console's address", func() bool {
		_, rest, found := strings.Cut(log.String(), "http://")
		address, _, _ = strings.Cut(rest, "/")
		return found && address != ""
	})
	return address
}

// openPage opens a page of the console.
func openPage(t *testing.T, address, path string) (status int, text string) {
	t.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// roleCoversLater: the role can use the objects of a later migration without another grant.
func roleCoversLater(t *testing.T, database string) {
	execute(t, pgtest.As(database, pgroles.Migrator), `
		CREATE TABLE locksidecar.later (i integer);
		CREATE FUNCTION locksidecar.two() RETURNS integer LANGUAGE sql AS $$ SELECT 2 $$;
		INSERT INTO locksidecar.later SELECT 1`)
	execute(t, pgtest.As(database, pgroles.Sidecar), "UPDATE locksidecar.later SET i = i + 1; DELETE FROM locksidecar.later WHERE i = 0")
	execute(t, pgtest.As(database, pgroles.Sidecar), "UPDATE locksidecar.later SET i = i + locksidecar.two() - 1")
	if n := pgtest.Query[int64](t, database, "SELECT i FROM locksidecar.later"); n != 3 {
		t.Errorf("got %d, want 3", n)
	}
	for _, sql := range []string{"SELECT FROM locksidecar.later", "SELECT locksidecar.two()"} {
		if err := tryExecute(t, pgtest.As(database, pgroles.Reader), sql); err == nil {
			t.Errorf("the reader may run %s", sql)
		}
	}
}
