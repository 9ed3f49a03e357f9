package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Kinds of keys. Those of each kind lie evenly between the others' in the index.
const (
	others    = iota // held by somebody else, not asked for
	free             // released before
	mine             // held under the lease mineLease, with the number as its token
	contended        // the same, and somebody waits
	unknown          // not there
	theirs           // held by somebody else
	dead             // held by the lease of its number, which expired, and somebody waits
)

// most is how many keys there are of each kind but the first.
const most = 1000

// Leases, by their numbers.
const (
	mineLease   = 9_000_001
	othersLease = 9_000_002
	waitsLease  = 9_000_003
	deadLeases  = 8_000_000 // and the following
)

// key makes the key of the number n, as keyOf does, when rows, count and kind are filled in.
const key = `'bench:' || to_char((%d::bigint * n / %d) * 10 + %d, 'FM00000000000000000000000000')`

// keyOf is a key of a kind.
func keyOf(rows, kind, n int) string {
	return fmt.Sprintf("bench:%026d", rows*n/most*10+kind)
}

// uuid is a lease or grant by its number.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// fill makes so many locks of others, and most of each other kind, with leases and waiters.
func fill(ctx context.Context, db *pgx.Conn, rows int) error {
	id := func(number string) string {
		return "('00000000-0000-4000-8000-' || to_char(" + number + ", 'FM000000000000'))::uuid"
	}
	locks := func(kind, count int, lease, grant, contended string) string {
		return fmt.Sprintf(`INSERT INTO locksidecar.locks
			(namespace, key, lease_id, token, attempt_id, contended, session, acquired_at, freed_at)
			SELECT 'default', `+key+`, %s, n, %s, %s, 'c1:1', clock_timestamp(), CASE WHEN %s IS NULL THEN clock_timestamp() END
			FROM generate_series(1, %d) n`, rows, count, kind, lease, grant, contended, lease, count)
	}
	waiters := func(kind int) string {
		return fmt.Sprintf(`INSERT INTO locksidecar.waiters (attempt_id, namespace, key, lease_id, session)
			SELECT `+id("n + %d")+`, 'default', `+key+`, '%s', 'c2:1' FROM generate_series(1, %d) n`,
			1_000_000*kind, rows, most, kind, uuid(waitsLease), most)
	}
	held := func(lease int) string { return "'" + uuid(lease) + "'::uuid" }
	for _, sql := range []string{
		`INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
			SELECT ` + id("n") + `, 'i' || n, 'p', true, '1 day', clock_timestamp() + interval '1 day'
			FROM (SELECT generate_series(1, 10000) UNION ALL SELECT generate_series(9000001, 9000003)) a (n)`,
		fmt.Sprintf(`INSERT INTO locksidecar.leases (id, instance, pod, renewed, ttl, expires_at)
			SELECT `+id("n + %d")+`, 'gone', 'p', true, '30 s', clock_timestamp() FROM generate_series(1, %d) n`, deadLeases, most),
		locks(others, rows, held(othersLease), id("n"), "false"),
		locks(free, most, "NULL::uuid", "NULL", "false"),
		locks(mine, most, held(mineLease), id("n"), "false"),
		locks(contended, most, held(mineLease), id("n"), "true"),
		locks(theirs, most, held(othersLease), id("n"), "false"),
		locks(dead, most, id(fmt.Sprintf("n + %d", deadLeases)), id("n"), "true"),
		waiters(contended),
		waiters(dead),
		"VACUUM ANALYZE",
		"CHECKPOINT",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
