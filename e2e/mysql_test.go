package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

// onMySQL returns the options of sidecars on a server of the test's own.
func onMySQL(t *testing.T) (options, *mysqltest.Database) {
	t.Helper()
	d := mysqltest.Start(t).NewDatabase(t)
	return options{"STORE_URL": d.URL()}, d
}

// sharedMySQL is a server for the tests that do not harm it. Each has a database of its own.
var sharedMySQL = sync.OnceValues(func() (*mysqltest.Server, error) { return mysqltest.Run() })

func onSharedMySQL(t *testing.T) options {
	t.Helper()
	m, err := sharedMySQL()
	if err != nil {
		t.Fatal(err)
	}
	return options{"STORE_URL": m.NewDatabase(t).URL()}
}

// TestMySQL: two sidecars on MariaDB exclude each other, hand locks on in order, and outlive kill -9 of the server.
func TestMySQL(t *testing.T) {
	t.Parallel()
	o, d := onMySQL(t)
	one, two := start(t, o), start(t, o)
	holder, other := dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("line", "")
	other.call("PUT", lockPath("line"), "").want(423, "held")
	if held := other.call("GET", lockPath("line"), "", "Cache-Control: no-cache").want(200, ""); held.str("state") != "held" {
		t.Errorf("the other sidecar sees %s", held.body)
	}
	l := standInLine(t, "line", one, two)
	all := inLine(func(int) bool { return true })
	began := time.Now()
	holder.release("line", token)
	l.run(all)
	t.Logf("%d hand-offs in %s", lineLength, time.Since(began).Round(time.Millisecond))
	l.check(t, all)

	held := holder.acquire("kept", "")
	before := other.acquire("again", "")
	other.release("again", before)
	d.Server.Restart(t)
	one.await("ready", one.tryReady)
	two.await("ready", two.tryReady)
	other.call("PUT", lockPath("kept"), "").want(423, "held")
	after := other.acquire("again", "")
	if after <= before {
		t.Errorf("token %d after the restart, and %d before", after, before)
	}
	other.release("again", after)
	holder.release("kept", held)
	other.release("kept", other.acquire("kept", `{"wait_ms":5000}`))
	for _, s := range []*sidecar{one, two} {
		if code := s.stop(); code != 0 {
			t.Errorf("a sidecar ended with %d:\n%s", code, s.log.tail(20))
		}
	}
}

// TestMySQLKilledSidecar: the locks of a killed sidecar are free when its lease ends, and a waiter gets them. A lock with a
// TTL of its own stays.
func TestMySQLKilledSidecar(t *testing.T) {
	t.Parallel()
	o, _ := onMySQL(t)
	one, two := start(t, o.with(options{"TTL": "2s"})), start(t, o)
	dial(t, one.socket).acquire("session", "")
	dial(t, one.socket).acquire("own", `{"bind":"ttl","ttl_ms":600000}`)
	waiter := dial(t, two.socket)
	waiter.send("PUT", lockPath("session"), `{"wait_ms":-1}`)
	looker := dial(t, two.socket)
	two.await("the waiter", func() bool {
		return looker.call("GET", lockPath("session"), "", "Cache-Control: no-cache").int("queue_length") == 1
	})
	one.kill()
	began := time.Now()
	waiter.read("PUT", lockPath("session")).granted()
	t.Logf("granted %s after the kill", time.Since(began).Round(time.Millisecond))
	looker.call("PUT", lockPath("own"), "").want(423, "held")
}

// TestMySQLUnreachable: a server that is down at the start is used when it is up. The log never has the password.
func TestMySQLUnreachable(t *testing.T) {
	t.Parallel()
	o, d := onMySQL(t)
	d.Server.Kill()
	file := filepath.Join(t.TempDir(), "url")
	secret := strings.Replace(o["STORE_URL"], ":"+d.Name+"@", ":s3cret@", 1)
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	s := launch(t, folder(t), options{"STORE_URL_FILE": file})
	s.await("the reason", func() bool { return len(s.logged("not ready yet")) > 0 })
	dial(t, s.socket).call("PUT", lockPath("x"), "").want(503, "store_unavailable")
	if text := s.log.String(); strings.Contains(text, "s3cret") {
		t.Errorf("the log has the password:\n%s", text)
	}
	if err := os.WriteFile(file, []byte(o["STORE_URL"]), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Server.Restart(t)
	s.await("ready", s.tryReady)
	dial(t, s.socket).acquire("x", "")
}

// TestMySQLRoles: with the users of deploy/mysql-roles.sql, the owner migrates, and a sidecar works that may not change tables.
// The commands of the README work there.
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
	command := func(want string, args ...string) {
		t.Helper()
		out, err := exec.Command(binary, append([]string{"--socket", s.socket}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	command("ran", "run", "job", "--", "echo", "ran")
	command("\n", "acquire", "deploy", "--ttl", "60s") // its token
	command("deploy", "ls")
	command("deploy", "get", "deploy")
	command("1 held", "stats")
	migrate = exec.Command(binary, "migrate")
	migrate.Env = append(os.Environ(), "LOCKSIDECAR_STORE_URL="+url("locksidecar", "wrong"))
	if out, err := migrate.CombinedOutput(); err == nil || strings.Contains(string(out), "wrong") {
		t.Errorf("migrate with a wrong password: %v\n%s", err, out)
	}
}
