package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	applicationName = "locksidecar"
	// idleTime closes connections that nothing needs for the moment.
	idleTime = 30 * time.Second
	// lifetime moves connections to where a load balancer wants them by now.
	lifetime = time.Hour

	oldestServer = 130000 // gen_random_uuid

	// The pause between two attempts to reach a server.
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
)

// settingsSetUp is how many settings the statement that sets up a connection
// returns before what it asks.
const settingsSetUp = 16

var errNotReached = errors.New("the database has not been reached yet")

// statementTimeout is below the operation's timeout, so that the server gives up
// first: what it ends is known to be undone.
func statementTimeout(timeout time.Duration) time.Duration { return timeout * 9 / 10 }

// lockTimeout is how long a statement waits for one row, which somebody else may
// keep for whatever reason. It is above the server's deadlock_timeout (1 s) when
// the operation's timeout is the default one or longer; a shorter one would end
// deadlocks before the server can name them.
func lockTimeout(timeout time.Duration) time.Duration { return timeout * 3 / 10 }

func poolConfig(config Config, conns int) (*pgxpool.Config, error) {
	pool, err := pgxpool.ParseConfig(config.URL)
	if err != nil {
		return nil, fmt.Errorf("store/postgres: %w", err) // pgx leaves the password out
	}
	pool.MaxConns = int32(conns)
	pool.MinConns = 0
	pool.MinIdleConns = 0
	pool.MaxConnIdleTime = idleTime
	pool.HealthCheckPeriod = idleTime / 2
	pool.MaxConnLifetime = lifetime
	pool.MaxConnLifetimeJitter = lifetime / 10
	// A ping that hangs must leave time for another connection: see live.
	pool.PingTimeout = config.Timeout / 5
	pool.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		if p.IdleDuration > time.Second {
			p.Conn.PgConn().CustomData()[rested] = true
		}
		return false // see live
	}
	pool.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		return setUp(ctx, conn, config.Timeout)
	}

	conn := pool.ConnConfig
	if conn.ConnectTimeout == 0 || conn.ConnectTimeout > config.Timeout {
		conn.ConnectTimeout = config.Timeout
	}
	if conn.ValidateConnect == nil { // of several hosts, the one that takes writes
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	if _, ok := conn.RuntimeParams["application_name"]; !ok {
		conn.RuntimeParams["application_name"] = applicationName
	}
	conn.OnNotice = noteWarning
	return pool, nil
}

func setUp(ctx context.Context, conn *pgx.Conn, timeout time.Duration) error {
	var encoding string
	var version int
	into := append(slices.Repeat([]any{nil}, settingsSetUp), &encoding, &version)
	err := conn.QueryRow(ctx, sqlConnectionSetUp, pgx.QueryExecModeExec,
		millis(statementTimeout(timeout)), millis(lockTimeout(timeout))).Scan(into...)
	if err != nil {
		return err
	}
	if version < oldestServer {
		return fmt.Errorf("the server is PostgreSQL %d; locksidecar needs 13 or later", version/10000)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the database's encoding is %s; keys are UTF-8 and need a database in UTF8", encoding)
	}
	return nil
}

func millis(d time.Duration) string {
	return fmt.Sprint(max(1, d.Milliseconds())) // 0 would mean no limit
}

// warned is set in a connection's custom data by noteWarning.
const warned = "locksidecar.warned"

// rested is set on a connection that has been idle.
const rested = "locksidecar.rested"

// noteWarning notes that the server stopped waiting for a synchronous standby: it
// then reports success for what may not survive.
func noteWarning(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Routine == "SyncRepWaitForLSN" { // it has no SQLSTATE of its own
		conn.CustomData()[warned] = true
	}
}

// doubt asks for a look at the server. It does not wait.
func (s *Store) doubt() {
	select {
	case s.doubts <- struct{}{}:
	default:
	}
}

// watch reaches the server and brings the schema up to date, again and again until
// it succeeds, and once more whenever somebody doubts it.
func (s *Store) watch(ctx context.Context, r *running) {
	defer close(r.ended)
	for {
		s.reach(ctx, r)
		select {
		case <-ctx.Done():
			return
		case <-s.doubts:
		}
	}
}

// reach looks at the server until it can be used. Errors are logged when they
// change, not each time. The connections of before a failure are dropped: each would
// fail one more operation, with an unknown outcome.
func (s *Store) reach(ctx context.Context, r *running) {
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := s.look(ctx, r.shared)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.shared.Reset()
			r.renewals.Reset()
		}
		s.become(err)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// become notes what is known of the server now.
func (s *Store) become(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	was := s.state.Load()
	s.state.Store(&state{why: why, usable: was.usable || why == nil})
	switch {
	case why == nil && was.why != nil:
		s.log.Info("the store is ready")
	case why != nil && (was.why == nil || kindOf(was.why) != kindOf(why)):
		s.log.Warn("the store is not ready", "error", why)
	}
}

// kindOf says what kind of trouble an error is. Its text would not do: that of a
// connection names another local port each time.
func kindOf(err error) string {
	if code := sqlState(err); code != "" {
		return code
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return "no connection"
	}
	return err.Error()
}

// look asks the server for the schema, and migrates it when that is allowed and
// needed.
func (s *Store) look(ctx context.Context, pool *pgxpool.Pool) error {
	looking, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	found, err := findSchema(looking, pool)
	if err != nil {
		return err
	}
	if !found.outdated() {
		return found.judge()
	}
	if !s.config.AutoMigrate {
		return found.judge()
	}
	from, to, err := migrate(ctx, s.pool.ConnConfig)
	if err != nil {
		return err
	}
	if from != to {
		s.log.Info("the schema was migrated", "from", from, "to", to)
	}
	return nil
}
