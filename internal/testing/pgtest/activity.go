package pgtest

import (
	"syscall"
	"testing"
)

// Backends returns how many connections to a database have last run a statement that is LIKE the
// pattern.
func Backends(tb testing.TB, url, like string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `
		SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()`, like)
}

// Terminate ends these connections and returns their number.
func Terminate(tb testing.TB, url, like string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()`, like)
}

// Freeze stops the processes of these connections until proceed is called.
func Freeze(tb testing.TB, url, like string) (proceed func()) {
	tb.Helper()
	pids := Query[[]int](tb, url, `
		SELECT array_agg(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid()`, like)
	all := func(signal syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, signal) // a process may have ended
		}
	}
	all(syscall.SIGSTOP)
	proceed = func() { all(syscall.SIGCONT) }
	tb.Cleanup(proceed)
	return proceed
}

// Deadlocks returns the number of deadlocks that the server has detected in a database. A
// connection reports its own when it ends, at the latest.
func Deadlocks(tb testing.TB, url string) int64 {
	tb.Helper()
	return Query[int64](tb, url, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}
