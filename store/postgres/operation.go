package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// tries is how often a statement is tried if the server rolls it back because of concurrent ones.
	tries = 4
	// retryPause is the longest pause before the second try.
	retryPause = 10 * time.Millisecond
	// toRead and toWrite begin a transaction, setRead and setWrite are for that of a simple query. A standby refuses to write.
	toRead   = "BEGIN ISOLATION LEVEL READ COMMITTED"
	toWrite  = toRead + " READ WRITE"
	setRead  = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
	setWrite = setRead + " READ WRITE"
)

// operation is the state that the statements of a call share.
type operation struct {
	*Store
	name string // metrics use its first word
	// pool has the connections that the operation uses, renewals the one for renewals.
	pool, renewalPool *pgxpool.Pool
	// forLocked: it renews leases whose rows are locked, on a main connection.
	forLocked bool
	// partly: an earlier statement changed something, so a failure leaves the outcome unknown.
	partly bool
	// notAfter is the database's time from which on it refuses this operation's statements.
	notAfter time.Time
	// blocked are leases that could not be reaped, and notHandedOff are keys that could not be handed off, because
	// their rows are locked.
	blocked      map[uuid.UUID]bool
	notHandedOff map[keyName]bool
	// patient: the next statement waits longer for a row, see patience.
	patient bool
	// expectedRows is the capacity for the rows of the next statement.
	expectedRows int
	sent         time.Time // of the running statement, or the last one
	// single maps reaped leases of bind:ttl locks to their keys.
	single map[uuid.UUID]keyName
	// looking: the server may be a standby, where a transaction cannot begin as one that writes.
	looking bool
}

// follower is a transaction that is sent together with a statement. It runs only if the statement is committed.
type follower struct {
	sql  statement
	args []any
	ran  bool // set by the statement that it follows
}

func (s *Store) beginBatch(ctx context.Context, name string, items int) (context.Context, context.CancelFunc, *operation, error) {
	if s.metrics != nil {
		word, _, _ := strings.Cut(name, " ")
		s.metrics.Batch(word, items)
	}
	return s.begin(ctx, name)
}

func (s *Store) begin(ctx context.Context, name string) (context.Context, context.CancelFunc, *operation, error) {
	r := s.pools()
	o := &operation{Store: s, name: name, notAfter: s.clock.now().Add(s.config.Timeout)}
	if state := s.state.Load(); r == nil || !state.usable {
		return nil, nil, nil, o.fail(state.why, false)
	}
	if err := s.mayCarryOut(name); err != nil {
		return nil, nil, nil, err
	}
	if err := s.admit(); err != nil {
		return nil, nil, nil, o.fail(err, false)
	}
	o.pool, o.renewalPool = r.main, r.renewalPool
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	return ctx, func() { cancel(); s.leave() }, o, nil
}

func (s *Store) beginRenewal(ctx context.Context, name string, items int) (context.Context, context.CancelFunc, *operation, error) {
	ctx, cancel, o, err := s.beginBatch(ctx, name, items)
	if err == nil {
		o.pool = o.renewalPool
	}
	return ctx, cancel, o, err
}

// fail is the error of the operation. reached: the statement had a connection, so the server may have got it.
func (o *operation) fail(err error, reached bool) error {
	return translate(o.name, err, reached, o.partly)
}

// query runs one statement as a transaction of its own. It returns rows only after the server has confirmed
// the commit, because rows arrive earlier (promise 4).
func query[T any](ctx context.Context, o *operation, sql statement, args []any, scan func(pgx.Rows, *T) error) ([]T, error) {
	for tried := 1; ; tried++ {
		found, reached, err := runOnce(ctx, o, sql, args, scan)
		if err == nil {
			return found, nil
		}
		if suspicious(err) && !errors.Is(ctx.Err(), context.Canceled) {
			o.doubt()
		}
		if sqlState(err) == stateNewHistory && tried < tries {
			if err := o.beginHistory(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if !repeatable(err) || tried == tries {
			return nil, o.fail(err, reached)
		}
		select {
		case <-ctx.Done():
			return nil, o.fail(err, reached)
		case <-time.After(rand.N(retryPause << tried)):
		}
	}
}

// beginHistory begins a new history on a server that was promoted or restored, if nobody else has. In any case it reads the server's history.
func (o *operation) beginHistory(ctx context.Context) error {
	began, err := query(ctx, o, sqlNewHistory, nil, scanOne[bool])
	if err != nil {
		if isRowLocked(err) { // another session begins the history; the items of this operation are not locked
			err = o.fail(errNewHistory, false)
		}
		return err
	}
	if err := o.learn(ctx, o.pool); err != nil {
		o.doubt()
		return o.fail(err, false)
	}
	if len(began) == 0 || !began[0] {
		return nil
	}
	o.log.Warn("the database server was promoted or restored: tokens jump, and no lease ends before its TTL has passed once more")
	return nil
}

// runOnce runs a statement once. reached is false if there was no connection.
func runOnce[T any](ctx context.Context, o *operation, sql statement, args []any, scan func(pgx.Rows, *T) error) (found []T, reached bool, err error) {
	if o.pool != o.renewalPool {
		if err := o.takePlace(ctx); err != nil {
			return nil, false, err
		}
		defer o.places.Leave()
	}
	conn, err := live(ctx, o.pool)
	if err != nil {
		return nil, false, err
	}
	defer handBack(conn)
	pg := conn.Conn().PgConn()
	delete(pg.CustomData(), warned)

	collect := func(rows pgx.Rows) error {
		defer rows.Close()
		var row, none T
		for rows.Next() {
			if row = none; found == nil {
				found = make([]T, 0, max(o.expectedRows, 1))
			}
			if err := scan(rows, &row); err != nil {
				return err
			}
			found = append(found, row)
		}
		rows.Close()
		return rows.Err()
	}
	began := o.begins()
	o.sent = time.Now()
	patient := o.patient
	o.patient = false // the next statements may be for other rows
	if o.isPooled() || sql.then != nil || patient {
		err = o.inTransaction(ctx, conn, sql, args, collect, patient)
	} else {
		err = inSession(ctx, conn, sql.sql, args, collect)
	}
	o.ends(ctx, sql.name, began, err)
	if err == nil {
		if _, ok := pg.CustomData()[warned]; ok {
			err = errNotReplicated
		}
	}
	if err != nil {
		return nil, true, o.readOnly(err)
	}
	return found, true, nil
}

// user takes turns for the main connections: a view's calls, or its renewals of leases whose rows are locked, which so do not wait behind its calls.
type user struct {
	view      *Store
	forLocked bool
}

// errNoPlace: calls have had all main connections for as long as a renewal waits for a locked row.
var errNoPlace = errors.New("calls use all connections, and the row of the lease is locked")

// takePlace waits for a main connection. A renewal waits for it no longer than for a row, because the answer for the view's other leases waits, too.
func (o *operation) takePlace(ctx context.Context) error {
	if !o.forLocked {
		return o.places.Enter(ctx, user{view: o.Store})
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.lockTimeout, errNoPlace)
	defer cancel()
	if o.places.Enter(limited, user{o.Store, true}) != nil {
		return context.Cause(limited)
	}
	return nil
}

// inSession runs a statement as a transaction of its own, in a session that was set up.
func inSession(ctx context.Context, conn *pgxpool.Conn, sql string, args []any, collect func(pgx.Rows) error) error {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return collect(rows)
}

// inTransaction runs a statement in an explicit transaction: if the session is shared, if another statement
// follows, or if this one is patient. Everything is sent at once, so no row stays locked for a round trip.
// If the follower fails, the statement is still committed.
func (o *operation) inTransaction(ctx context.Context, conn *pgxpool.Conn, sql statement, args []any, collect func(pgx.Rows) error, patient bool) error {
	batch := &pgx.Batch{}
	begin := func() {
		if o.looking {
			batch.Queue(toRead)
		} else {
			batch.Queue(toWrite)
		}
		if o.isPooled() {
			batch.Queue(sqlConnectionSetUp.sql, o.settings(true)...)
		}
		if patient {
			batch.Queue("SELECT set_config('lock_timeout', $1, true)", millis(min(patience*o.lockTimeout, statementTimeout(o.config.Timeout)/2)))
		}
	}
	then, follows := sql.then, sql.then != nil && o.listens() // without listeners, polls find the hand-off
	begin()
	var committed bool
	var since time.Time
	var done pgconn.CommandTag
	batch.Queue(sql.sql, args...).Query(func(rows pgx.Rows) error {
		err := collect(rows)
		done = rows.CommandTag()
		return err
	})
	batch.Queue("COMMIT").Exec(func(pgconn.CommandTag) error {
		committed, since = true, o.begins()
		return nil
	})
	if follows {
		then.ran = false
		if o.isPooled() {
			begin()
		}
		batch.Queue(then.sql.sql, then.args...)
		if o.isPooled() {
			batch.Queue("COMMIT")
		}
	}
	ctx, end := o.span(ctx, conn.Conn(), sql)
	err := conn.SendBatch(ctx, batch).Close()
	if committed && follows { // the follower's own commit may have failed
		then.ran = err == nil
		o.ends(ctx, then.sql.name, since, err)
	}
	if committed && err != nil {
		o.log.Debug("the notification after a statement failed", "statement", sql.name, "error", err)
		err = nil
	}
	end(done, err)
	if conn.Conn().PgConn().TxStatus() == 'E' {
		_, _ = conn.Exec(ctx, "ROLLBACK") // otherwise the pool would discard the connection
	}
	return err
}

// movedAway reports whether the server accepts no writes: it was demoted, a pooler leads to another server
// (then BEGIN fails), or another sidecar has marked it as an old primary.
func (o *operation) movedAway(err error) bool {
	code := sqlState(err)
	return code == stateReadOnly || code == stateOldOne || code == stateNotSupported && o.isPooled()
}

// readOnly drops a pool's connections if one leads to a server that accepts no writes.
func (o *operation) readOnly(err error) error {
	if o.movedAway(err) {
		o.pool.Reset()
		o.doubt()
	}
	return err
}

func execute(ctx context.Context, o *operation, sql statement, args ...any) error {
	_, err := query(ctx, o, sql, args, nothing)
	return err
}

func nothing(pgx.Rows, *struct{}) error { return nil }

func scanOne[T any](rows pgx.Rows, value *T) error { return rows.Scan(value) }

// errShort: a statement did not answer every item, which is a defect of this package.
var errShort = errors.New("the database answered fewer items than were asked")

// uuids converts ids to arrays, because pgx would convert each uuid.UUID to text.
func uuids(ids []uuid.UUID) [][16]byte {
	bare := make([][16]byte, len(ids))
	for i, id := range ids {
		bare[i] = id
	}
	return bare
}

// handBack returns a connection. A broken one is removed from the pool, because pgx takes up to 15 s to
// close it and counts it meanwhile.
func handBack(conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() {
		conn.Hijack()
		return
	}
	conn.Release()
}

// live returns a connection that has answered, or was used a moment ago and is silent since.
func live(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	for {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		pg := conn.Conn().PgConn()
		if _, idle := pg.CustomData()[rested]; !idle && silent(pg.Conn()) {
			return conn, nil
		}
		delete(pg.CustomData(), rested)
		pinging, cancel := context.WithTimeout(ctx, pool.Config().PingTimeout)
		err = conn.Ping(pinging)
		cancel()
		if err == nil {
			return conn, nil
		}
		handBack(conn)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

type nowAndThen struct{ last atomic.Int64 }

const seldom = 10 * time.Second

// due returns true at most once in each interval.
func (n *nowAndThen) due(each time.Duration) bool {
	last, now := n.last.Load(), time.Now().UnixNano()
	return now-last > int64(each) && n.last.CompareAndSwap(last, now)
}
