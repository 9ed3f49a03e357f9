package pgtest_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashes) != "" {
		crash()
	}
	goleak.VerifyTestMain(pgtest.Tests{M: m})
}

func TestCluster(t *testing.T) {
	cluster := pgtest.Start(t, pgtest.WithTCP())
	one, two := cluster.NewDatabase(t), cluster.NewDatabase(t)
	run(t, one, "CREATE TABLE kept (n int)")
	run(t, two, "CREATE TABLE kept (n int)") // a database of its own

	for range 3 {
		run(t, one, "INSERT INTO kept VALUES (1)")
	}
	if got := cluster.Statements(t, one, "INSERT INTO kept%"); got != 3 {
		t.Errorf("statements = %d, want 3", got)
	}
	if got := cluster.Statements(t, two, "INSERT INTO kept%"); got != 0 {
		t.Errorf("statements in the other database = %d, want 0", got)
	}
	cluster.ResetStatements(t, one)
	if got := cluster.Statements(t, one, "INSERT INTO kept%"); got != 0 {
		t.Errorf("statements after reset = %d, want 0", got)
	}

	cluster.Kill()
	if conn, err := pgx.Connect(context.Background(), one); err == nil {
		_ = conn.Close(context.Background())
		t.Fatal("a killed server answers")
	}
	cluster.Restart(t)
	if got := pgtest.Query[int64](t, one, "SELECT count(*) FROM kept"); got != 3 {
		t.Errorf("rows after kill -9 and restart = %d, want 3", got)
	}
	cluster.Restart(t)
	if got := pgtest.Query[string](t, one, "SHOW fsync"); got != "on" {
		t.Errorf("fsync = %s: benchmarks need the default durability", got)
	}
}

// Clusters begin with copies of the same data, and none may be taken for a copy of another.
func TestClustersDiffer(t *testing.T) {
	const identifier = "SELECT system_identifier::text FROM pg_control_system()"
	seen := map[string]bool{}
	for _, c := range []*pgtest.Cluster{pgtest.Start(t), pgtest.Start(t), pgtest.Start(t, pgtest.InMemory())} {
		is := pgtest.Query[string](t, c.URL("postgres"), identifier)
		if seen[is] {
			t.Errorf("two clusters are %s", is)
		}
		seen[is] = true
		c.Restart(t)
		if again := pgtest.Query[string](t, c.URL("postgres"), identifier); again != is {
			t.Errorf("%s became %s", is, again)
		}
	}
}

const crashes = "PGTEST_CRASHES"

// crash is a test process that starts a cluster and panics.
func crash() {
	cluster, err := pgtest.Run()
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString(cluster.URL("postgres") + "\n")
	panic("crashed")
}

func TestNoServerOutlivesACrash(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashes+"=1")
	out, err := cmd.Output()
	url, folder, ok := strings.Cut(strings.TrimSpace(string(out)), "?host=")
	if err == nil || !ok {
		t.Fatalf("the process was to crash: %v\n%s", err, out)
	}
	folder, _, _ = strings.Cut(folder, "&")
	for answers := true; answers; { // the server needs a moment to end
		conn, err := pgx.Connect(context.Background(), url+"?host="+folder)
		if answers = err == nil; answers {
			_ = conn.Close(context.Background())
		}
	}
	for left := true; left; { // and the next run tidies up
		pgtest.Start(t)
		_, err := os.Stat(folder)
		left = err == nil
	}
}

func run(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}
