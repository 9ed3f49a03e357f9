package pgtest

import "testing"

// Statements is how many statements whose text is LIKE the pattern were executed in a
// database since the last reset. Statements inside functions are not counted.
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
