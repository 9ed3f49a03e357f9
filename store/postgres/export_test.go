package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/store"
)

// Setting reads a server setting on a connection of a store.
func Setting(ctx context.Context, tb testing.TB, s *Store, name string) string {
	tb.Helper()
	ctx, cancel, o, err := s.begin(ctx, "setting")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	found, err := query(ctx, o, statement{name: "setting", sql: "SELECT current_setting($1)"}, []any{name}, scanOne[string])
	if err != nil {
		tb.Fatal(err)
	}
	return found[0]
}

// SharedConns is the greatest number of connections, except those for renewals and LISTEN.
func SharedConns(s *Store) int64 { return int64(s.pool.MaxConns) }

// HostNames returns the name of a host that was looked up by name and found at an address.
func HostNames(lookup pgconn.LookupFunc) func(ctx context.Context, name string, at net.Addr) string {
	hosts := &hostNames{}
	return func(ctx context.Context, name string, at net.Addr) string {
		_, _ = hosts.noting(lookup)(ctx, name)
		return hosts.of(at)
	}
}

// ChannelOf returns the channel of an instance.
var ChannelOf = channelOf

// ListenAsk is the statement by which the listener checks a silent connection.
var ListenAsk = sqlListenAsk.sql

// InSession runs a query in a session that the store has used, without setting the session up.
func InSession(ctx context.Context, tb testing.TB, s *Store, sql string) string {
	tb.Helper()
	conn, err := s.started.main.Acquire(ctx)
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

// Patient gives a space long limits for rows, for its listener, for commits and for sweeps, because
// tests with two sessions on a busy machine are slow. Call it before Start.
func Patient(s *Space) {
	const long = 4 * time.Second // a little less than the statement's own limit
	s.lockTimeout, s.longCommit = long, time.Hour
	s.sweepLap, s.sweepBudget = 0, time.Second
	s.listener.wait = long
}

// RenewTogether sets for how long a view's renewal waits for those of others. Call it before Start.
func RenewTogether(s *Space, pause time.Duration) { s.together.pause = pause }

// AskOften makes a space's listener check its connection often. Call it before Start.
func AskOften(s *Space) { s.listener.alive = 20 * time.Millisecond }

// NeverListenAgain makes a space's listener pause for ever after a connection has ended. Call it before Start.
func NeverListenAgain(s *Space) { s.listener.pauses = pauses{time.Hour, time.Hour} }

// WaitForAPlace returns how many calls and renewals of a view wait for a main connection.
func WaitForAPlace(s *Store) int {
	return s.places.Waiting(user{s, false}) + s.places.Waiting(user{s, true})
}

// SetClock makes a store assume that the database's clock is ahead by this time.
func SetClock(s *Store, ahead time.Duration) {
	c := &s.clock
	c.heard(c.now().Add(ahead))
}

// SetReleased makes a store assume that these keys were released a short time ago, and no others.
func SetReleased(s *Store, keys ...string) {
	s.recent.next.Purge()
	for _, key := range keys {
		s.recent.freed(key)
	}
}

// SweepAtOnce makes sweeps remove rows without a delay, one lap after the other.
func SweepAtOnce(s *Space) {
	s.sweepAfter, s.forgetAfter, s.sweepLap = 0, 0, 0
}

// SweepBy sets the time budget of a sweep's step.
func SweepBy(s *Store, budget time.Duration) { s.sweepBudget = budget }

// Tell sends an event of a key in a namespace, as an operation does after its commit.
func Tell(tb testing.TB, s *Store, namespace string, e store.Event) {
	tb.Helper()
	_, cancel, o, err := s.begin(tb.Context(), "tell")
	if err != nil {
		tb.Fatal(err)
	}
	defer cancel()
	o.event(namespace, e)
}

// WordOf encodes an event for other instances.
var WordOf = wordOf

// Silent reports whether a store has sent all its news.
func Silent(s *Store) bool {
	m := s.notifier
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speaking == nil
}

// Measure sends a space's metrics to a recorder that is not a [metrics.Store]. Call it before
// Start.
func Measure(s *Space, to recorder) { s.metrics = to }

// NameOf returns the name of a span.
var NameOf = nameOf

// SchemaVersion is the schema version of this package.
var SchemaVersion = schemaVersion

// OwnSchema and OwnCode are the migrations of this package.
var OwnSchema, OwnCode = own.schema, own.code

// Unloaded returns the statements that this package does not use.
func Unloaded() map[string]string { return unloaded }

// MigrateFurther applies one further migration, and further code. busy is called when it waits.
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

// UnflushedReleases are releases that a crash of the server could lose.
type UnflushedReleases = unflushed

// MaxUnflushed is the greatest number of these releases.
const MaxUnflushed = maxUnflushed

// NewUnflushed starts without any.
var NewUnflushed = newUnflushed

// Unflushed returns those of a store.
func Unflushed(s *Store) *UnflushedReleases { return s.unflushed }

// Count returns how many were sent since the last new connection.
func (u *unflushed) Count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.since)
}

// Doubtful is someDoubtful.
func (u *unflushed) Doubtful() []store.Claim {
	return slices.Concat(slices.Collect(maps.Values(u.someDoubtful()))...)
}

// Add is add.
func (u *unflushed) Add(claims []store.Claim, sent time.Time) { u.add(nil, claims, sent) }

// Flushed is flushed.
func (u *unflushed) Flushed(sent time.Time) { u.flushed(sent) }

// MadeConnection is madeConnection.
func (u *unflushed) MadeConnection() { u.madeConnection() }

// Late is late.
type Late = late

// Note is note for one attempt.
func (l *late) Note(id store.AttemptID, notAfter time.Time) {
	l.note(1, func(int) store.AttemptID { return id }, notAfter)
}

// CanFollow is canFollow.
func (l *late) CanFollow(id store.AttemptID, at time.Time) bool { return l.canFollow(id, at) }
