package e2e

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

var routed = flag.Bool("mysql-router", false, "put a MySQL Router, which shares no connections, before each server of MySQL, but that of TestMySQLRoles")

// onMySQL returns the options of sidecars on a server of the test's own.
func onMySQL(t *testing.T) (options, *mysqltest.Database) {
	t.Helper()
	d := mysqltest.Start(t).NewDatabase(t)
	return options{"STORE_URL": urlOf(t, d)}, d
}

func urlOf(t *testing.T, d *mysqltest.Database) string {
	t.Helper()
	if *routed {
		return d.Through(mysqltest.StartRouter(t, d.Server, false))
	}
	return d.URL()
}

// sharedMySQL is a server for the tests that do not harm it. Each has a database of its own.
var sharedMySQL = sync.OnceValues(func() (*mysqltest.Server, error) { return mysqltest.Run() })

func onSharedMySQL(t *testing.T) options {
	t.Helper()
	m, err := sharedMySQL()
	if err != nil {
		t.Fatal(err)
	}
	return options{"STORE_URL": urlOf(t, m.NewDatabase(t))}
}

// TestMySQL: two sidecars on MariaDB exclude each other, hand locks on in order, and outlive kill -9 of the server.
// Proves: A8
func TestMySQL(t *testing.T) {
	t.Parallel()
	o, d := onMySQL(t)
	outliveRestart(t, o, func() {
		d.Server.Restart(t)
		await.Until(t, "the server is reached", func() bool { // a Router looks for a lost server once a second
			migrate := exec.Command(binary, "migrate")
			migrate.Env = append(os.Environ(), "LOCKSIDECAR_STORE_URL="+o["STORE_URL"])
			return migrate.Run() == nil
		})
	}, "")
}

// TestMySQLKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
func TestMySQLKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onMySQL(t)
	killSidecar(t, o)
}

// TestMySQLUnreachable: a server that is down at the start is used when it is up. The log never has the password.
func TestMySQLUnreachable(t *testing.T) {
	t.Parallel()
	o, d := onMySQL(t)
	d.Server.Kill()
	startWithoutServer(t, o, strings.Replace(o["STORE_URL"], ":"+d.Name+"@", ":s3cret@", 1), func() { d.Server.Restart(t) }, "")
}

// TestMySQLRoles: with the users of deploy/mysql-roles.sql, the owner migrates, and a sidecar works that may not change tables.
// The commands of the README work there.
// Proves: threat sidecar role
func TestMySQLRoles(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	text, err := os.ReadFile("../deploy/mysql-roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	first, second, _ := strings.Cut(string(text), "GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_locks")
	m.Exec(t, first)
	url := func(user, password string) string {
		return "mysql://" + user + ":" + password + "@" + m.Address + "/locksidecar"
	}
	migrate := exec.Command(binary, "migrate")
	migrate.Env = append(os.Environ(), "LOCKSIDECAR_STORE_URL="+url("locksidecar_owner", "replace-1"))
	if out, err := migrate.CombinedOutput(); err != nil || !strings.Contains(string(out), "version 1 (it was 0)") {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	m.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_locks"+second)
	s := start(t, options{"STORE_URL": url("locksidecar", "replace-2"), "AUTO_MIGRATE": "false"})
	runCommands(t, s)
	migrate = exec.Command(binary, "migrate")
	migrate.Env = append(os.Environ(), "LOCKSIDECAR_STORE_URL="+url("locksidecar", "wrong"))
	if out, err := migrate.CombinedOutput(); err == nil || strings.Contains(string(out), "wrong") {
		t.Errorf("migrate with a wrong password: %v\n%s", err, out)
	}
}
