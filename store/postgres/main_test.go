package postgres_test

import (
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// deadlocks makes the server look for deadlocks before any statement has waited for
// as long as the store lets it.
var deadlocks = pgtest.WithSetting("deadlock_timeout", "10ms")

// cluster serves all tests of this package, a database each.
var cluster *pgtest.Cluster

func TestMain(m *testing.M) {
	var err error
	if cluster, err = pgtest.Run(pgtest.WithoutFsync(), deadlocks); err != nil {
		log.Fatal(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		cluster.Stop()
		os.Exit(code)
	}))
}

// backend opens instances on one database.
type backend struct {
	tb     testing.TB
	url    string
	listen postgres.Listen
}

func (b backend) Open(id store.Identity) store.Store {
	b.tb.Helper()
	s, err := postgres.New(postgres.Config{URL: b.url, Identity: id, Listen: b.listen, AutoMigrate: true})
	if err != nil {
		b.tb.Fatal(err)
	}
	return postgres.Patient(s)
}

// TestConformance runs the suite on one database: each test has a namespace of its
// own, as the users of a shared database have.
func TestConformance(t *testing.T) {
	url := cluster.NewDatabase(t)
	storetest.Run(t, func(t *testing.T) storetest.Backend { return backend{tb: t, url: url} })
}

// TestConformanceInSharedSessions: as behind a pooler that gives each transaction to
// another session.
func TestConformanceInSharedSessions(t *testing.T) {
	url := cluster.NewDatabase(t)
	storetest.Run(t, func(t *testing.T) storetest.Backend { return backend{t, url, postgres.ListenNever} })
}
