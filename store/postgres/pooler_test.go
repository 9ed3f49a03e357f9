package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// TestConformanceBehindPgBouncer tests the rules of the suite that need connections and news through PgBouncer in transaction mode, with fewer
// connections than instances: with polling. With -combinations it tests all rules, also with a listener past it. Each run uses an
// history source that TestConformance does not use, and strange defaults, which each transaction must replace.
// Proves: trap defaults, trap pooler
func TestConformanceBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for way, source := range map[string]string{"never": "none", "direct": "server"} {
		if way == "direct" && !*combinations {
			continue
		}
		t.Run(way, func(t *testing.T) {
			url := withSource(t, source)
			makeStrange(t, url)
			setDefaults(t, url, strangeDefaults, configOf(t, url).User)
			run := storetest.RunTogether // most of what a pooler could change
			if *combinations {
				run = storetest.Run
			}
			run(t, ways[way](t, url))
		})
	}
}

// ways are the ways to connect: without a pooler, through a pooler, and through a pooler with a
// listener past it.
var ways = map[string]func(t *testing.T, url string) func(t *testing.T) storetest.Backend{
	"no pooler": func(t *testing.T, url string) func(*testing.T) storetest.Backend {
		return storetest.In(spaces(t, 3, postgres.Config{URL: url})...)
	},
	"never": func(t *testing.T, url string) func(*testing.T) storetest.Backend {
		return storetest.In(spaces(t, 3, postgres.Config{URL: cluster.Pooler(t, url, 6), Listen: postgres.ListenNever})...)
	},
	"direct": func(t *testing.T, url string) func(*testing.T) storetest.Backend { // ready implies that it gets news
		return storetest.In(spaces(t, 3, postgres.Config{URL: cluster.Pooler(t, url, 6), Listen: postgres.ListenAlways, ListenURL: url})...)
	},
}

// Trap: a pooler's connections outlive a failover, and lead to a standby. A store without its own
// sessions gets another error there. It must not be ready.
func TestAStandbyBehindAPoolerIsNotReady(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.InMemory(), pgroles.Template())
	url := own.NewDatabase(t)
	s := backend{tb: t, url: own.Pooler(t, url, 5), listen: postgres.ListenNever, failover: store.FailoverQuick}.open(store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
	start(t, s, nil)
	lease := openLease(t, s, time.Hour)
	want(t, acquire(t, s, askFor("a", lease)), store.Granted)

	own.Demote(t)
	poll(t, "the standby in the error of Ready", func() bool {
		if answers, err := s.Acquire(t.Context(), []store.Ask{askFor("b", lease)}); !store.Unavailable(err) {
			t.Fatalf("a standby grants: %+v, %v", answers, err)
		}
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "standby")
	})
	own.Lead(t)
	awaitReady(t, s)
	want(t, acquire(t, s, askFor("b", lease)), store.Granted)
	want(t, acquire(t, s, askFor("a", lease)), store.Held)
}

// Trap: a migration needs two connections. Sidecars that wait for their turn must leave it the
// second one.
func TestMigrationsThroughASmallPooler(t *testing.T) {
	t.Parallel()
	url := cluster.NewEmptyDatabase(t)
	through := cluster.Pooler(t, url, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var migrators sync.WaitGroup
	for range 6 {
		migrators.Go(func() {
			if _, to, err := postgres.Migrate(ctx, through); err != nil || to == 0 {
				t.Errorf("migrated to version %d: %v", to, err)
			}
		})
	}
	migrators.Wait()
	startStore(t, url, store.Identity{Namespace: "n", Instance: "i", Pod: "p"})
}
