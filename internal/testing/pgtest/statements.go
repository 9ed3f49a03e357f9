package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Statements is how many statements whose text is LIKE the pattern were executed
// in a database since the last reset. What functions execute inside is not counted.
func (c *Cluster) Statements(tb testing.TB, url, like string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `
		SELECT coalesce(sum(s.calls), 0)::bigint
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND s.query LIKE $1
		AND s.query NOT LIKE '%pg_stat_statements%'`, like)
}

// ResetStatements sets the counts of a database to zero.
func (c *Cluster) ResetStatements(tb testing.TB, url string) {
	tb.Helper()
	Query[bool](tb, url, `
		SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0) IS NOT NULL`)
}

// Query runs a statement that gives one value, on a connection of its own: the superuser's,
// whosoever the URL is.
func Query[T any](tb testing.TB, url, sql string, args ...any) T {
	tb.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, Admin(url))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var value T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return value
}
