package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// attempts is how often a statement is tried that the server undid because of
	// others that ran beside it.
	attempts = 4
	// retryPause is the longest pause before the second attempt.
	retryPause = 10 * time.Millisecond
)

// operation is one call of the store: what its statements have in common.
type operation struct {
	*Store
	name string
	pool *pgxpool.Pool
	// partly: something was carried out that the caller must hear of. From then on
	// a failure leaves the outcome unknown.
	partly bool
}

// begin starts an operation, on the shared connections.
func (s *Store) begin(ctx context.Context, name string) (context.Context, context.CancelFunc, *operation, error) {
	s.mu.Lock()
	r := s.started
	s.mu.Unlock()
	o := &operation{Store: s, name: name}
	if state := s.state.Load(); r == nil || !state.usable {
		return nil, nil, nil, o.fail(state.why, false)
	}
	o.pool = r.shared
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	return ctx, cancel, o, nil
}

// beginRenewal starts an operation on the renewals' connection.
func (s *Store) beginRenewal(ctx context.Context, name string) (context.Context, context.CancelFunc, *operation, error) {
	ctx, cancel, o, err := s.begin(ctx, name)
	if err != nil {
		return nil, nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil {
		cancel()
		return nil, nil, nil, o.fail(errStopped, false)
	}
	o.pool = s.started.renewals
	return ctx, cancel, o, nil
}

// fail is the error with which the operation ends.
func (o *operation) fail(err error, sent bool) error {
	return translate(o.name, err, sent, o.partly)
}

// query carries out one statement, a transaction of its own, and returns its rows
// only when the server has confirmed the commit: rows arrive before it (invariant 4).
func query[T any](ctx context.Context, o *operation, sql string, args []any, scan func(pgx.Rows, *T) error) ([]T, error) {
	for attempt := 1; ; attempt++ {
		found, sent, err := try(ctx, o.pool, sql, args, scan)
		if err == nil {
			return found, nil
		}
		if suspicious(err) && !errors.Is(ctx.Err(), context.Canceled) {
			o.doubt()
		}
		if !repeatable(err) || attempt == attempts {
			return nil, o.fail(err, sent)
		}
		select {
		case <-ctx.Done():
			return nil, o.fail(err, sent)
		case <-time.After(rand.N(retryPause << attempt)):
		}
	}
}

// try carries out a statement once. sent is false when no connection was had.
func try[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args []any, scan func(pgx.Rows, *T) error) (found []T, sent bool, err error) {
	conn, err := live(ctx, pool)
	if err != nil {
		return nil, false, err
	}
	defer giveBack(conn)
	pg := conn.Conn().PgConn()
	delete(pg.CustomData(), warned)

	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, true, readOnly(pool, err)
	}
	defer rows.Close()
	for rows.Next() {
		var row T
		if scanErr := scan(rows, &row); scanErr != nil {
			return nil, true, scanErr
		}
		found = append(found, row)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return nil, true, readOnly(pool, err)
	}
	if _, ok := pg.CustomData()[warned]; ok {
		return nil, true, errNotReplicated
	}
	return found, true, nil
}

// readOnly drops a pool's connections when one of them leads to a server that
// takes no writes any more: they were made before a failover.
func readOnly(pool *pgxpool.Pool, err error) error {
	if sqlState(err) == stateReadOnly {
		pool.Reset()
	}
	return err
}

// execute is query for a statement that gives no rows.
func execute(ctx context.Context, o *operation, sql string, args ...any) error {
	_, err := query(ctx, o, sql, args, func(pgx.Rows, *struct{}) error { return nil })
	return err
}

// scanOne reads rows of one column.
func scanOne[T any](rows pgx.Rows, value *T) error { return rows.Scan(value) }

// errShort: a statement that must answer every item did not. A defect here.
var errShort = errors.New("the database answered fewer items than were asked")

// uuids are ids as pgx encodes them best: it knows bare arrays, and would have to
// ask each uuid.UUID for its text.
func uuids(ids []uuid.UUID) [][16]byte {
	bare := make([][16]byte, len(ids))
	for i, id := range ids {
		bare[i] = id
	}
	return bare
}

// giveBack returns a connection. A broken one is taken out of the pool first: pgx
// closes it in the background for up to 15 s, and would keep its place for so long.
func giveBack(conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() {
		conn.Hijack()
		return
	}
	conn.Release()
}

// live is a connection that answers, or that was used a moment ago.
func live(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		data := conn.Conn().PgConn().CustomData()
		if _, idle := data[rested]; !idle {
			return conn, nil
		}
		delete(data, rested)
		pinging, cancel := context.WithTimeout(ctx, pool.Config().PingTimeout)
		err = conn.Ping(pinging)
		cancel()
		if err == nil {
			return conn, nil
		}
		giveBack(conn)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}
