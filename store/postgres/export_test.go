package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/store"
)

// Setting asks for a server setting on a connection of a store.
func Setting(ctx context.Context, tb testing.TB, s *Store, name string) string {
	tb.Helper()
	ctx, cancel, o, err := s.begin(ctx, "setting")
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
func SharedConns(s *Store) int64 { return int64(s.pool.MaxConns) }

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

// ListenAsk is what the listener asks a silent server.
var ListenAsk = sqlListenAsk.sql

// InSession asks in a session that the store has used, without setting anything up.
func InSession(ctx context.Context, tb testing.TB, s *Store, sql string) string {
	tb.Helper()
	conn, err := s.started.shared.Acquire(ctx)
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
func Patient(s *Store) *Store {
	const long = 4 * time.Second // the statement's own limit is a little more
	s.lockTimeout, s.longCommit = long, time.Hour
	s.sweepLap, s.sweepBudget = 0, time.Second
	s.listener.wait = long
	return s
}

// AskOften makes a store's listener ask often whether the other end is there. Before Start.
func AskOften(s *Store) { s.listener.alive = 20 * time.Millisecond }

// SetClock makes a store believe that it is so much later by the database's clock
// than the database said.
func SetClock(s *Store, ahead time.Duration) {
	c := &s.clock
	c.heard(c.now().Add(ahead))
}

// SweepAtOnce makes a store's sweeps take what just expired or became free, lap after lap.
func SweepAtOnce(s *Store) {
	s.sweepAfter, s.forgetAfter, s.sweepLap = 0, 0, 0
}

// SweepBy sets how long a step of a store's sweeps goes on.
func SweepBy(s *Store, budget time.Duration) { s.sweepBudget = budget }

// Tell tells an event of a key in a namespace, as an operation does after its commit.
func Tell(tb testing.TB, s *Store, namespace string, e store.Event) {
	tb.Helper()
	_, cancel, o, err := s.begin(tb.Context(), "tell")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	o.event(namespace, e)
}

// WordOf is the word by which others are told of an event.
var WordOf = wordOf

// Silent reports whether a store has told all that there was to tell.
func Silent(s *Store) bool {
	m := s.notifier
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speaking == nil
}

// Measure lets a store tell its metrics to who is not a [metrics.Store]. Before Start.
func Measure(s *Store, to recorder) { s.metrics = to }

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

// Enqueue is Acquire for asks that wait.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i].Wait = true
	}
	return s.Acquire(ctx, asks)
}

// UnflushedReleases are those that a crash of the server could forget.
type UnflushedReleases = unflushed

// MaxUnflushed is how many there are at most.
const MaxUnflushed = maxUnflushed

// NewUnflushed remembers none.
var NewUnflushed = newUnflushed

// Unflushed are those of a store.
func Unflushed(s *Store) *UnflushedReleases { return s.unflushed }

// Count is how many there are that were sent since the last connection was made.
func (u *unflushed) Count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.since)
}

// Doubtful is someDoubtful.
func (u *unflushed) Doubtful() []store.Claim { return u.someDoubtful() }

// Add is add.
func (u *unflushed) Add(claims []store.Claim, sent time.Time) { u.add(claims, sent) }

// Flushed is flushed.
func (u *unflushed) Flushed(sent time.Time) { u.flushed(sent) }

// MadeConnection is madeConnection.
func (u *unflushed) MadeConnection() { u.madeConnection() }
