package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// tables are the database's figures of its tables and their indexes, and how many calls have waited.
const tables = `
SELECT sum(pg_table_size(relid))::float8, sum(pg_indexes_size(relid))::float8,
	sum(n_live_tup)::float8, sum(n_dead_tup)::float8, sum(n_tup_upd)::float8, sum(n_tup_hot_upd)::float8,
	(SELECT last_value FROM locksidecar.waiters_id_seq)::float8
FROM pg_stat_user_tables WHERE schemaname = 'locksidecar'`

// backends are the sidecars' connections.
const backends = `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1
	AND backend_type = 'client backend'`

// relations are the tables and indexes by themselves, for who asks which of them grew.
const relations = `SELECT c.relname::text, pg_relation_size(c.oid)::float8 FROM pg_class c
	WHERE c.relnamespace = 'locksidecar'::regnamespace AND c.relkind IN ('r', 'i')`

// ours is the application name of connections that are not a sidecar's.
const ours = "soak"

// database is a database with its sidecars.
type database struct {
	url  string
	conn *pgx.Conn
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = ours
	return pgx.ConnectConfig(ctx, config)
}

// read adds the database's figures.
func (d *database) read(ctx context.Context, f map[string]float64) error {
	var heap, indexes, live, dead, updates, hot, waiters float64
	row := d.conn.QueryRow(ctx, tables)
	if err := row.Scan(&heap, &indexes, &live, &dead, &updates, &hot, &waiters); err != nil {
		return err
	}
	f[tableBytes], f[indexBytes], f[liveRows], f[deadRows] = heap, indexes, live, dead
	f[updated], f[hotUpdated], f[waitersStood] = updates, hot, waiters
	rows, err := d.conn.Query(ctx, relations)
	if err != nil {
		return err
	}
	var name string
	var size float64
	if _, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error { f["size of "+name] = size; return nil }); err != nil {
		return err
	}
	if rows, err = d.conn.Query(ctx, backends, ours); err != nil {
		return err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return err
	}
	f[backendCount] = float64(len(pids))
	for _, pid := range pids {
		f[backendBytes] += float64(status(pid, "RssAnon")) / float64(len(pids))
	}
	return nil
}

// snapshot opens a transaction that sees what was when it began, until end.
func (d *database) snapshot(ctx context.Context) (end func() error, err error) {
	conn, err := connect(ctx, d.url)
	if err != nil {
		return nil, err
	}
	// The snapshot is taken by the first statement.
	if _, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM locksidecar.locks"); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return func() error {
		_, err := conn.Exec(ctx, "COMMIT")
		return errors.Join(err, conn.Close(ctx))
	}, nil
}

// forgets waits until the server has removed most of the dead versions.
func (d *database) forgets(ctx context.Context, most float64, limit time.Duration) (took time.Duration, dead float64, err error) {
	for began := time.Now(); ; {
		f := make(map[string]float64)
		if err := d.read(ctx, f); err != nil {
			return 0, 0, err
		}
		if took, dead = time.Since(began), f[deadRows]; dead <= most || took > limit {
			return took, dead, nil
		}
		rest(ctx, time.Second) // the pause of a poll
	}
}

// status is a size that the kernel tells of a process, in bytes. 0: it has just ended.
func status(pid int, name string) (size int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), name+":")
	_, _ = fmt.Sscan(rest, &size)
	return size << 10
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
