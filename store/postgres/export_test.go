package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/store"
)

// Setting asks for a server setting on a connection of a store.
func Setting(ctx context.Context, tb testing.TB, s store.Store, name string) string {
	tb.Helper()
	ctx, cancel, o, err := s.(*Store).begin(ctx, "setting")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	found, err := query(ctx, o, statement{"setting", "SELECT current_setting($1)"}, []any{name}, scanOne[string])
	if err != nil {
		tb.Fatal(err)
	}
	return found[0]
}

// SharedConns is how many connections there are at most for all but renewals and LISTEN.
func SharedConns(s store.Store) int64 { return int64(s.(*Store).pool.MaxConns) }

// HostNames says what a host is called that was looked up by its name, and then found at an address.
func HostNames(lookup pgconn.LookupFunc) func(ctx context.Context, name string, at net.Addr) string {
	hosts := &hostNames{}
	return func(ctx context.Context, name string, at net.Addr) string {
		_, _ = hosts.noting(lookup)(ctx, name)
		return hosts.of(at)
	}
}

// ChannelOf is where an instance listens.
var ChannelOf = channelOf

// ReconcileLock is had by who looks at a part of the locks.
const ReconcileLock = reconcileLock

// ListenAsk is what the listener asks a silent server.
var ListenAsk = sqlListenAsk.sql

// InSession asks in a session that the store has used, without setting anything up.
func InSession(ctx context.Context, tb testing.TB, s store.Store, sql string) string {
	tb.Helper()
	conn, err := s.(*Store).started.shared.Acquire(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Release()
	var found string
	if err := conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&found); err != nil {
		tb.Fatal(err)
	}
	return found
}

// Patient makes a store wait for rows for long, so that two-session tests can take
// their time, and for its listener, which a busy machine may let connect late; and find no
// commit long, no sweep too soon, and no step of it too long. Before Start.
func Patient(s store.Store) store.Store {
	const long = 4 * time.Second // the statement's own limit is a little more
	s.(*Store).lockTimeout, s.(*Store).longCommit = long, time.Hour
	s.(*Store).sweepLap, s.(*Store).sweepBudget = 0, time.Second
	s.(*Store).listener.wait = long
	return s
}

// AskOften makes a store's listener ask often whether the other end is there. Before Start.
func AskOften(s store.Store) { s.(*Store).listener.alive = 20 * time.Millisecond }

// SetClock makes a store believe that it is so much later by the database's clock
// than the database said.
func SetClock(s store.Store, ahead time.Duration) {
	c := &s.(*Store).clock
	c.heard(c.now().Add(ahead))
}

// SweepAtOnce makes a store's sweeps take what just expired or became free, lap after lap.
func SweepAtOnce(s store.Store) {
	s.(*Store).sweepAfter, s.(*Store).forgetAfter, s.(*Store).sweepLap = 0, 0, 0
}

// SweepBy sets how long a step of a store's sweeps goes on.
func SweepBy(s store.Store, budget time.Duration) { s.(*Store).sweepBudget = budget }

// Tell tells an event of a key in a namespace, as an operation does after its commit.
func Tell(tb testing.TB, s store.Store, namespace string, e store.Event) {
	tb.Helper()
	_, cancel, o, err := s.(*Store).begin(tb.Context(), "tell")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	o.event(namespace, e)
}

// WordOf is the word by which others are told of an event.
var WordOf = wordOf

// Silent reports whether a store has told all that there was to tell.
func Silent(s store.Store) bool {
	m := s.(*Store).notifier
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speaking == nil
}

// Measure lets a store tell its metrics to who is not a [metrics.Store]. Before Start.
func Measure(s store.Store, to recorder) { s.(*Store).metrics = to }

// NameOf is the name of a span.
var NameOf = nameOf

// SchemaVersion is the schema that this package was written for.
var SchemaVersion = schemaVersion

// OwnSchema and OwnCode are the migrations of this package.
var OwnSchema, OwnCode = own.schema, own.code

// Unloaded are the statements that this package does not use.
func Unloaded() map[string]string { return unloaded }

// MigrateFurther applies one migration more than there are, and more code. busy hears when it waits.
func MigrateFurther(ctx context.Context, tb testing.TB, url, sql, code string, busy func(error)) error {
	tb.Helper()
	further := func(folder fs.FS, name, text string) fs.FS {
		names, err := fs.Glob(folder, "*.sql")
		files := fstest.MapFS{name: {Data: []byte(text)}}
		for _, name := range names {
			var text []byte
			text, err = fs.ReadFile(folder, name)
			if err != nil {
				break
			}
			files[name] = &fstest.MapFile{Data: text}
		}
		if err != nil {
			tb.Fatal(err)
		}
		return files
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	m := migrationsIn(further(own.schema, fmt.Sprintf("%05d_further.sql", schemaVersion+1), "-- +goose Up\n"+sql), further(own.code, "z.sql", code))
	_, _, err = m.migrate(ctx, config, busy)
	return err
}
