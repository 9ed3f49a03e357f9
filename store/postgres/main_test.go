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

// deadlocks makes the server look for deadlocks before any statement has waited for
// as long as the store lets it.
var deadlocks = pgtest.WithSetting("deadlock_timeout", "10ms")

// cluster serves all tests of this package, a database each, which stores use in the
// sidecars' role: it may change rows, and no schema. The tests' own hand is the superuser's.
var cluster *pgtest.Cluster

// modelChecks is how often TestModel is played, modelSteps how long, if -rapid.checks and
// -rapid.steps do not say.
const modelChecks, modelSteps = "12", "60"

// atOnce is how many tests run at a time, if -parallel does not say: they wait more than
// they compute, so a processor for each would be idle.
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
	// failover is auto if empty.
	failover postgres.Failover
}

func (b backend) Open(id store.Identity) store.Store { return b.open(id) }

func (b backend) open(id store.Identity) *postgres.Store {
	b.tb.Helper()
	s, err := postgres.New(postgres.Config{URL: b.url, Identity: id, Listen: b.listen, Failover: b.failover, AutoMigrate: true})
	if err != nil {
		b.tb.Fatal(err)
	}
	return postgres.Patient(s)
}

// TestConformance runs the suite on one database: each test has a namespace of its
// own, as the users of a shared database have.
func TestConformance(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	if is := sourceOf(t, url); is != "timeline" {
		t.Errorf("the epoch source is %s, want that of a server that refuses nothing", is)
	}
	storetest.Run(t, func(t *testing.T) storetest.Backend { return backend{tb: t, url: url} })
}

// aging opens instances on a database of which nobody else knows.
type aging struct {
	backend
	conn *pgx.Conn
}

func (a aging) Open(id store.Identity) store.Store {
	s := a.backend.open(id)
	postgres.SweepAtOnce(s)
	return s
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
			url := cluster.NewDatabase(t)
			a := aging{backend{tb: t, url: url, listen: listen}, connect(t, url)}
			storetest.RunModel(t, time.Minute, func() storetest.Aging { return a })
		})
	}
}
