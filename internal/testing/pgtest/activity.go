package pgtest

import "testing"

// Backends is how many connections to a database last ran a statement whose text
// is LIKE the pattern.
func Backends(tb testing.TB, url, like string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `
		SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()`, like)
}

// Terminate ends those connections and returns how many there were.
func Terminate(tb testing.TB, url, like string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()`, like)
}

// Deadlocks is how many deadlocks the server has detected in a database. A
// connection reports its own at the latest when it ends.
func Deadlocks(tb testing.TB, url string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}
