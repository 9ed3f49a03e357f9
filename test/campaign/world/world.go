package world

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Config says what a world is made of.
type Config struct {
	// Folder is for the world's files: what [Folder] has made.
	Folder string
	// Logs is a folder for what shall be kept of a run that failed.
	Logs string
	// Binary is the sidecar that [Build] has built, Settings are its variables without
	// their prefix, such as TTL.
	Binary   string
	Settings map[string]string
	// Each are more of them for single sidecars, by their place.
	Each []map[string]string
	// Engine is what keeps the locks; PostgreSQL if empty.
	Engine Engine
	// Env are further variables of sidecars, as NAME=value.
	Env []string

	// Pooled puts PgBouncer in transaction mode before PostgreSQL, for all sidecars; they
	// listen past it.
	Pooled bool

	Sidecars, Apps int
	// App is the command of an app: the name of this start, the file for its records, and
	// the sidecars' sockets.
	App func(name, records string, sockets []string) *exec.Cmd
}

// poolSize is fewer connections than the sidecars have.
const poolSize = 6

// World is a running system.
type World struct {
	Store Store
	// Postgres, Etcd, MySQL, Redis or Cluster is the store; the others are nil.
	Postgres *Postgres
	Etcd     *Servers
	MySQL    *MySQL
	Redis    *RedisGroup
	Cluster  *RedisCluster
	Sidecars []*Sidecar
	Apps     []*App
}

// Start starts the store, the sidecars and then the apps. All of it ends with the test.
func Start(tb testing.TB, c Config) *World {
	tb.Helper()
	w := &World{}
	switch c.Engine {
	case Etcd:
		w.Etcd = newServers(tb, c)
		w.Store = w.Etcd
	case MariaDB:
		w.MySQL = newMySQL(tb, c)
		w.Store = w.MySQL
	case Redis:
		w.Redis = newRedis(tb, c)
		w.Store = w.Redis
	case Cluster:
		w.Cluster = newRedisCluster(tb, c)
		w.Store = w.Cluster
	default:
		w.Postgres = newPostgres(tb, c)
		w.Store = w.Postgres
	}
	if c.Pooled {
		c.Settings = maps.Clone(c.Settings)
		c.Settings["POSTGRES_LISTEN_URL"] = w.Postgres.SidecarURL()
	}
	server := newToxiproxy()
	for i := range c.Sidecars {
		network, err := w.Store.network(tb, server, fmt.Sprintf("net%d", i))
		if err != nil {
			tb.Fatal(err)
		}
		s, err := newSidecar(c, i, network.URL())
		if err != nil {
			tb.Fatal(err)
		}
		s.Net = network
		w.Sidecars = append(w.Sidecars, s)
		w.launch(tb, &s.program, s.Start)
	}
	for _, s := range w.Sidecars {
		if err := s.Ready(); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range c.Apps {
		a := newApp(c, i, w.Sockets())
		w.Apps = append(w.Apps, a)
		w.launch(tb, &a.program, a.Start)
	}
	return w
}

func (w *World) launch(tb testing.TB, p *program, start func() error) {
	tb.Helper()
	if err := start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = p.Kill() })
}

// Sockets are where the sidecars listen.
func (w *World) Sockets() (sockets []string) {
	for _, s := range w.Sidecars {
		sockets = append(sockets, s.Socket())
	}
	return sockets
}

// Healthy waits until everything answers, after all faults are healed.
func (w *World) Healthy() error {
	if err := await("the store answers", func() error { return w.Store.Answers(time.Second) }); err != nil {
		return err
	}
	for _, s := range w.Sidecars {
		if err := s.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// Failed says what of the world broke by itself: processes that ended unasked, data
// races, panics, and deadlocks, for there is one order in which rows are locked.
func (w *World) Failed() error {
	errs := []error{w.Store.failed()}
	for _, s := range w.Sidecars {
		errs = append(errs, s.failed())
	}
	for _, a := range w.Apps {
		errs = append(errs, a.failed())
	}
	return errors.Join(errs...)
}

// StopApps lets the apps end their calls and go.
func (w *World) StopApps() error {
	var errs []error
	for _, a := range w.Apps {
		errs = append(errs, a.end(syscall.SIGTERM, func(state *os.ProcessState) error {
			if !state.Success() {
				return fmt.Errorf("%s: %s; see %s", a.Name(), state, a.log)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}
