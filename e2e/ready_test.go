package e2e

import (
	"os"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// becomesUnready breaks a store, so that it answers and grants nothing, and mends it again. The sidecar is ready only before and
// after, its log and /readyz name what is missing, and it stays alive. A sidecar that starts meanwhile becomes ready afterwards.
func becomesUnready(t *testing.T, o options, breaks, mends func(), says ...string) {
	t.Helper()
	s := start(t, o)
	c := dial(t, s.socket)
	breaks()
	c.call("PUT", lockPath(s.socket), `{"bind":"ttl","ttl_ms":1000}`).want(503, "store_unavailable")
	unready := func(s *sidecar) {
		t.Helper()
		var c *app
		s.await("its socket", func() (served bool) {
			var err error
			c, err = tryDial(t, s.socket)
			return err == nil
		})
		s.await("not ready, and why", func() bool {
			ready := c.call("GET", "/readyz", "")
			named := true
			for _, word := range says {
				named = named && strings.Contains(string(ready.body), word)
			}
			return ready.status == 503 && named
		})
		c.call("GET", "/healthz", "").want(200, "")
		s.await("the cause in the log", func() bool {
			for line := range strings.SplitSeq(s.log.tail(1000), "\n") {
				if named := strings.Contains(line, "the store grants no locks") || strings.Contains(line, "the store is not ready"); named && strings.Contains(line, says[0]) {
					return true
				}
			}
			return false
		})
	}
	unready(s)
	later := launch(t, folder(t), o.with(options{"POD": "later"}))
	unready(later)
	mends()
	s.await("ready again", s.tryReady)
	later.await("ready", later.tryReady)
	c.call("PUT", lockPath(s.socket), `{"bind":"ttl","ttl_ms":1000}`).want(200, "")
}

// TestReadyMeansGrants: a store that answers and grants nothing makes a sidecar not ready.
// Proves: rule readiness
func TestReadyMeansGrants(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL, a right", func(t *testing.T) {
		t.Parallel()
		database := ownServer(t)
		makeRoles(t, database)
		if out, err := migrateAs(t, pgroles.Migrator, database); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		o := options{"STORE_URL": pgtest.As(database, pgroles.Sidecar), "AUTO_MIGRATE": "false"}
		for _, right := range []string{"INSERT ON locksidecar.leases", "INSERT, UPDATE ON locksidecar.locks"} {
			table := right[strings.LastIndex(right, ".")+1:]
			becomesUnready(t, o,
				func() { execute(t, database, "REVOKE "+right+" FROM "+pgroles.Sidecar) },
				func() { execute(t, database, "GRANT "+right+" TO "+pgroles.Sidecar) }, "permission denied for table "+table)
		}
	})
	t.Run("PostgreSQL, a table", func(t *testing.T) {
		t.Parallel()
		database := ownServer(t)
		start(t, options{"STORE_URL": database}).stop()
		becomesUnready(t, options{"STORE_URL": database, "AUTO_MIGRATE": "false"},
			func() { execute(t, database, "ALTER TABLE locksidecar.locks RENAME TO gone") },
			func() { execute(t, database, "ALTER TABLE locksidecar.gone RENAME TO locks") }, "locks", "does not exist")
	})
	t.Run("PostgreSQL, the schema", func(t *testing.T) {
		t.Parallel()
		database := ownServer(t)
		start(t, options{"STORE_URL": database}).stop()
		becomesUnready(t, options{"STORE_URL": database, "AUTO_MIGRATE": "false"},
			func() { execute(t, database, "ALTER SCHEMA locksidecar RENAME TO gone") },
			func() { execute(t, database, "ALTER SCHEMA gone RENAME TO locksidecar") }, "locksidecar migrate")
	})
	t.Run("MySQL", func(t *testing.T) {
		t.Parallel()
		m := mysqltest.Start(t)
		text, err := os.ReadFile("../deploy/mysql-roles.sql")
		if err != nil {
			t.Fatal(err)
		}
		first, second, _ := strings.Cut(string(text), "GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_locks")
		m.Exec(t, first)
		url := "mysql://locksidecar_owner:replace-1@" + m.Address + "/locksidecar"
		owner := start(t, options{"STORE_URL": url})
		owner.stop()
		m.Exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_locks"+second)
		o := options{"STORE_URL": strings.Replace(url, "locksidecar_owner:replace-1", "locksidecar:replace-2", 1), "AUTO_MIGRATE": "false"}
		for _, table := range []string{"locksidecar_leases", "locksidecar_locks"} {
			becomesUnready(t, o,
				func() { m.Exec(t, "REVOKE INSERT ON locksidecar."+table+" FROM locksidecar") },
				func() { m.Exec(t, "GRANT INSERT ON locksidecar."+table+" TO locksidecar") }, "INSERT command denied", table)
		}
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		o, d := onRedis(t)
		d.Do(t, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
		o["STORE_URL"] = strings.Replace(o["STORE_URL"], "redis://", "redis://app:pw@", 1)
		o["FAILOVER"] = "quick"
		becomesUnready(t, o,
			func() { d.Do(t, "ACL", "SETUSER", "app", "-fcall") }, func() { d.Do(t, "ACL", "SETUSER", "app", "+fcall") }, "fcall", "lacks a right")
		becomesUnready(t, o,
			func() { d.Do(t, "ACL", "SETUSER", "app", "-set") }, func() { d.Do(t, "ACL", "SETUSER", "app", "+set") }, "lacks a right", "docs/stores.md")
		d.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		becomesUnready(t, o,
			func() { d.Do(t, "CONFIG", "SET", "maxmemory", "1000") }, func() { d.Do(t, "CONFIG", "SET", "maxmemory", "0") }, "maxmemory")
	})
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		c := etcdtest.Start(t)
		root, ctx := c.Client(t), t.Context()
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		all := func(what clientv3.PermissionType) {
			t.Helper()
			must(root.RoleGrantPermission(ctx, "locks", "/e2e/", clientv3.GetPrefixRangeEnd("/e2e/"), what))
		}
		must(root.RoleAdd(ctx, "root"))
		must(root.UserAdd(ctx, "root", "root"))
		must(root.UserGrantRole(ctx, "root", "root"))
		must(root.RoleAdd(ctx, "locks"))
		all(clientv3.PermissionType(clientv3.PermReadWrite))
		must(root.UserAdd(ctx, "sidecar", "pw"))
		must(root.UserGrantRole(ctx, "sidecar", "locks"))
		must(root.AuthEnable(ctx))
		admin, err := clientv3.New(clientv3.Config{Endpoints: root.Endpoints(), Username: "root", Password: "root"})
		must(admin, err)
		t.Cleanup(func() { _ = admin.Close() })
		root = admin
		o := options{"STORE_URL": "etcd://sidecar:pw@" + c.Addresses() + "/e2e"}
		becomesUnready(t, o,
			func() { all(clientv3.PermissionType(clientv3.PermRead)) }, func() { all(clientv3.PermissionType(clientv3.PermReadWrite)) }, "/e2e/", "sidecar")
		becomesUnready(t, o,
			func() { must(root.UserRevokeRole(ctx, "sidecar", "locks")) },
			func() { must(root.UserGrantRole(ctx, "sidecar", "locks")) }, "/e2e/", "sidecar")
	})
}
