package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// mine marks the bench's own statements, which are not counted.
const mine = "/* bench */ "

// counter lets PostgreSQL count what is executed in a database.
type counter struct {
	ctx context.Context
	db  *pgx.Conn
}

func (b *bench) counter(url string) (*counter, error) {
	db, err := pgx.Connect(b.ctx, url)
	if err != nil {
		return nil, err
	}
	return &counter{ctx: b.ctx, db: db}, nil
}

func (c *counter) close() { _ = c.db.Close(context.WithoutCancel(c.ctx)) }

// reset begins to count.
func (c *counter) reset() error { return c.exec("SELECT pg_stat_statements_reset()") }

// exec executes a statement of the bench's own.
func (c *counter) exec(sql string) error {
	if _, err := c.db.Exec(c.ctx, mine+sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// count is how many statements were executed whose text begins so, and how many rows they
// returned or changed. Statements inside functions are not counted.
func (c *counter) count(prefix string) (calls, rows int64, err error) {
	err = c.db.QueryRow(c.ctx, mine+`
		SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(rows), 0)::bigint
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND starts_with(query, $1) AND NOT starts_with(query, $2)`,
		prefix, mine).Scan(&calls, &rows)
	return calls, rows, err
}

// each says how often each kind of statement was executed; a kind is what the comment
// says with which a statement of the sidecar begins.
func (c *counter) each() (text string, err error) {
	err = c.db.QueryRow(c.ctx, mine+`
		SELECT coalesce(string_agg(calls || ' ' || kind, ', ' ORDER BY calls DESC, kind), 'none') FROM (
			SELECT coalesce(substring(query FROM 'locksidecar:([a-z_0-9]+)'), left(query, 40)) AS kind, sum(calls) AS calls
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
			WHERE d.datname = current_database() AND NOT starts_with(query, $1) GROUP BY kind) k`, mine).Scan(&text)
	return text, err
}

// number is the answer of a query for one number.
func (c *counter) number(sql string, args ...any) (n int64, err error) {
	if err = c.db.QueryRow(c.ctx, mine+sql, args...).Scan(&n); err != nil {
		err = fmt.Errorf("%s: %w", sql, err)
	}
	return n, err
}

// text is the answer of a query for one text.
func (c *counter) text(sql string) (s string, err error) {
	if err = c.db.QueryRow(c.ctx, sql).Scan(&s); err != nil {
		err = fmt.Errorf("%s: %w", sql, err)
	}
	return s, err
}

// held counts the locks whose lease has not expired by the database's clock. The documentation promises the
// names of the tables, so a benchmark may use them.
func (c *counter) held() (int64, error) {
	return c.number(`SELECT count(*) FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id AND s.expires_at > clock_timestamp()`)
}

// rest lets time pass.
func (b *bench) rest(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}
