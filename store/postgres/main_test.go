package postgres_test

import (
	"errors"
	"flag"
	"log"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// deadlocks makes the server look for deadlocks sooner than a store's statement gives up its wait.
var deadlocks = pgtest.WithSetting("deadlock_timeout", "10ms")

// cluster is the server for all tests of this package, with a database for each. Stores use the
// sidecars' role, which may change rows but not the schema. Tests connect as superuser.
var cluster *pgtest.Cluster

// modelChecks and modelSteps are the number and the length of TestModel's runs without
// -rapid.checks and -rapid.steps.
const modelChecks, modelSteps = "12", "60"

// atOnce is the number of parallel tests without -parallel. Tests mostly wait, so it exceeds the
// number of processors.
const atOnce = "6"

func TestMain(m *testing.M) {
	err := errors.Join(flag.Set("rapid.checks", modelChecks), flag.Set("rapid.steps", modelSteps), flag.Set("test.parallel", atOnce))
	if err != nil {
		log.Fatal(err)
	}
	if cluster, err = pgtest.Run(pgtest.WithoutFsync(), deadlocks, pgroles.Template()); err != nil {
		log.Fatal(err)
	}
	goleak.VerifyTestMain(pgtest.Tests{M: m}, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		cluster.Stop()
		os.Exit(code)
	}))
}

// backend opens instances on one database.
type backend struct {
	tb     testing.TB
	url    string
	listen postgres.Listen
	// failover is "auto" if empty.
	failover store.Failover
}

// open makes a patient instance in a space of its own.
func (b backend) open(id store.Identity, prepare ...func(*postgres.Space)) *postgres.Store {
	b.tb.Helper()
	config := postgres.Config{URL: b.url, Listen: b.listen, Failover: b.failover, AutoMigrate: true}
	return only(b.tb, config, id, append(prepare, postgres.Patient)...)
}

// TestConformance runs the suite on one database. Each test has its own namespace, like the users
// of a shared database.
func TestConformance(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	if is := sourceOf(t, url); is != "timeline" {
		t.Errorf("the history source is %s, want that of a server without refused functions", is)
	}
	storetest.Run(t, storetest.In(spaces(t, 3, postgres.Config{URL: url})...))
}

// aging has a database of its own.
type aging struct {
	storetest.Backend
	tb   testing.TB
	conn *pgx.Conn
}

// newAging opens two spaces whose sweeps do not wait, in each aging that it returns the same ones.
func newAging(t *testing.T, listen postgres.Listen) func() aging {
	t.Helper()
	url := cluster.NewDatabase(t)
	both := spaces(t, 2, postgres.Config{URL: url, Listen: listen})
	for _, s := range both {
		postgres.SweepAtOnce(s.(*postgres.Space))
	}
	open, conn := storetest.In(both...), connect(t, url)
	return func() aging { return aging{open(t), t, conn} }
}

// Age implements [storetest.Aging].
func (a aging) Age(d time.Duration) {
	exec(a.tb, a.conn, "UPDATE locksidecar.leases SET expires_at = expires_at - $1::interval", d)
	exec(a.tb, a.conn, "UPDATE locksidecar.locks SET hold_until = hold_until - $1::interval WHERE hold_until IS NOT NULL", d)
	exec(a.tb, a.conn, "UPDATE locksidecar.shares SET hold_until = hold_until - $1::interval WHERE hold_until IS NOT NULL", d)
}

func TestModel(t *testing.T) {
	t.Parallel()
	for _, listen := range []postgres.Listen{postgres.ListenAlways, postgres.ListenNever} {
		t.Run(string(listen), func(t *testing.T) {
			open := newAging(t, listen)
			storetest.RunModel(t, time.Minute, func() storetest.Aging { return open() })
		})
	}
}
