package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
)

const mib = 1 << 20

// p8 measures what a sidecar costs that does nothing.
func (b *bench) p8() ([]result, error) {
	const quiet = 10 * time.Second
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	migrating, err := b.sidecar("p8", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	migrating.stop() // the schema is current from now on
	var ready []float64
	for range b.rounds {
		p, err := b.sidecar("p8", "STORE_URL="+url)
		if err != nil {
			return nil, err
		}
		ready = append(ready, float64(p.readyAfter)/float64(time.Millisecond))
		b.log.Printf("P8 ready after %.1f ms", ready[len(ready)-1])
		p.stop()
	}
	sidecar, err := b.sidecar("p8", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	statements, err := b.statements(url, quiet)
	if err != nil {
		return nil, err
	}
	rss, anonymous := sidecar.memory()
	b.log.Printf("P8 idle for %s: %d statements; %.1f MiB resident, %.1f MiB anonymous", quiet, statements, float64(rss)/mib, float64(anonymous)/mib)
	file, err := os.Stat(b.binary)
	if err != nil {
		return nil, err
	}
	row := func(what, figure, goal string, reached bool) result {
		return result{id: "P8", what: what, figure: figure, peer: "–", ratio: "–", goal: goal, reached: reached}
	}
	return []result{
		row("idle sidecar, resident memory", fmt.Sprintf("%.1f MiB", float64(rss)/mib), "at most 25 MB", rss <= 25e6),
		row("of it anonymous", fmt.Sprintf("%.1f MiB", float64(anonymous)/mib), "at most 10 MB", anonymous <= 10e6),
		row(fmt.Sprintf("statements in %s without leases", quiet), fmt.Sprint(statements), "0", statements == 0),
		row("ready, on PostgreSQL with a current schema", fmt.Sprintf("%.0f ms", median(ready)), "at most 100 ms", median(ready) <= 100),
		row("size of the binary", fmt.Sprintf("%.1f MiB", float64(file.Size())/mib), "at most 25 MB", file.Size() <= 25e6),
	}, nil
}

// statements lets PostgreSQL count the statements of a quiet time.
func (b *bench) statements(url string, quiet time.Duration) (int64, error) {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close(ctx) }()
	if _, err := db.Exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
		return 0, err
	}
	select {
	case <-time.After(quiet):
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	var n int64
	err = db.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%'`).Scan(&n)
	return n, err
}
