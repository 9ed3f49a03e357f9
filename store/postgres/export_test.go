package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// ChannelOf is where an instance listens.
var ChannelOf = channelOf

// ListenAsk is what the ear asks a silent server.
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
// their time. Before Start.
func Patient(s store.Store) store.Store {
	s.(*Store).lockTimeout = 4 * time.Second
	return s
}

// SetClock makes a store believe that it is so much later by the database's clock
// than the database said.
func SetClock(s store.Store, ahead time.Duration) {
	c := &s.(*Store).clock
	c.heard(c.now().Add(ahead))
}

// SweepAtOnce makes a store's sweeps take what just expired or became free.
func SweepAtOnce(s store.Store) {
	s.(*Store).sweepAfter, s.(*Store).forgetAfter = 0, time.Duration(0)
}

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
	m := s.(*Store).mouth
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.speaking == nil
}

// Measure lets a store tell its figures to who is not a [metrics.Store]. Before Start.
func Measure(s store.Store, to recorder) { s.(*Store).metrics = to }

// NameOf is the name of a span.
var NameOf = nameOf
