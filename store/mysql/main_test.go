package mysql_test

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// shared is one server for the tests that do not harm it. Each uses a database of its own.
var shared *mysqltest.Server

// atOnce is the number of parallel tests without -parallel. Tests mostly wait for leases to end.
const atOnce = "8"

func TestMain(m *testing.M) {
	err := flag.Set("test.parallel", atOnce)
	if err != nil {
		log.Fatal(err)
	}
	// The server's defaults are not those that transactions need.
	shared, err = mysqltest.Run(mysqltest.WithFlag("--transaction-isolation=SERIALIZABLE"), mysqltest.WithFlag("--completion-type=CHAIN"),
		mysqltest.WithFlag("--autocommit=0"), mysqltest.WithFlag("--default-time-zone=+05:30"), mysqltest.WithFlag("--sql-mode=ANSI,NO_BACKSLASH_ESCAPES"))
	if err != nil {
		log.Fatal(err)
	}
	storetest.Understates(100 * time.Millisecond) // the time that a request took is not left to a lease any more, see living
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		shared.Stop()
		os.Exit(code)
	}), goleak.IgnoreTopFunction("syscall.Syscall6")) // the thread that keeps the server
}

// server opens backends on one database.
type server struct {
	*mysqltest.Database
	t      *testing.T
	url    string
	limit  time.Duration
	logger *slog.Logger
	quick  bool
}

// on makes a database with tables.
func on(t *testing.T, m *mysqltest.Server) *server {
	t.Helper()
	s := empty(t, m)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, _, err := mysql.Migrate(ctx, s.url); err != nil {
		t.Fatal(err)
	}
	return s
}

// empty makes a database without tables.
func empty(t *testing.T, m *mysqltest.Server) *server {
	t.Helper()
	d := m.NewDatabase(t)
	return &server{Database: d, t: t, url: d.URL()}
}

// Connect implements [castest.Server].
func (s *server) Connect() cas.Server {
	s.t.Helper()
	b, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: s.url, Timeout: s.limit, Logger: s.logger}, Quick: s.quick})
	if err != nil {
		s.t.Fatal(err)
	}
	return expects{b}
}

// expects is a server whose views always look for letters, as if somebody waited.
type expects struct{ *mysql.Server }

func (s expects) View(instance string) cas.Backend {
	return expecting{s.Server.View(instance).(*mysql.Backend)}
}

// expecting is such a view.
type expecting struct{ *mysql.Backend }

func (e expecting) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	e.Expect(true, false, true)
	return e.Backend.Start(ctx, deliver, lost)
}

// Behind implements [castest.Faulty].
func (s *server) Behind() (castest.Server, castest.Faults) {
	link := process.NewLink(s.t, s.Server.Address)
	return &server{Database: s.Database, t: s.t, url: s.At(link.Address), limit: time.Second}, link
}

// Proves: promise 9
func TestFaults(t *testing.T) {
	t.Parallel()
	castest.RunFaulty(t, func(t *testing.T) castest.Faulty { return on(t, shared) })
}

// FailOver implements [castest.Forgetful]. The server gets the data of before, and another name.
func (s *server) FailOver(t *testing.T, forgotten func()) {
	t.Helper()
	use := "USE " + s.Name + "; SET autocommit = 1; "
	copied, back := use, use
	for _, table := range []string{"locks", "leases", "meta"} {
		copied += "CREATE TABLE copy_" + table + " AS SELECT * FROM locksidecar_" + table + "; "
		back += "DELETE FROM locksidecar_" + table + "; INSERT INTO locksidecar_" + table + " SELECT * FROM copy_" + table + "; DROP TABLE copy_" + table + "; "
	}
	s.Server.Exec(t, copied)
	forgotten()
	s.Server.Exec(t, back)
	s.Server.Rename(t, 7)
}

func TestHistories(t *testing.T) {
	t.Parallel()
	castest.RunForgetful(t, func(t *testing.T) castest.Forgetful { return on(t, mysqltest.Start(t)) })
}

func TestBackend(t *testing.T) {
	t.Parallel()
	castest.Run(t, func(t *testing.T) castest.Server { return on(t, shared) })
}

// Proves: A8
func TestConformance(t *testing.T) {
	t.Parallel()
	castest.RunConformance(t, on(t, shared))
}

// TestViews: the instances of a process, which share connections, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) castest.Server { return on(t, shared) })
}
