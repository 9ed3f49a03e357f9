package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	applicationName = "locksidecar"
	// clientEncoding is a parameter of the connection and not of the session, so it is in effect from the start. Poolers
	// know it. With another one, the same key would be another key.
	clientEncoding = "UTF8"
	// idleTime is after how long an unused connection is closed.
	idleTime = 30 * time.Second
	// lifetime is after how long a connection is replaced, so that a load balancer can move it.
	lifetime = time.Hour

	oldestServer = 140000 // the function sweep_step needs its reads by page

	// hostPatience limits how long one of several hosts may take to connect, unless the URL sets a limit. The
	// machine of a failed primary may accept connections and never answer.
	hostPatience = time.Second

	// The pause between two attempts to reach a server.
	firstPause = 50 * time.Millisecond
	longPause  = 5 * time.Second
)

var (
	errNotReached = errors.New("the database has not been reached yet")
	// errShared: the first connection has shown a pooler, so it must be made again with other settings.
	errShared = errors.New("there is a connection pooler between here and the database")
)

// statementTimeout is shorter than timeout: if the server gives up first, the outcome is known.
func statementTimeout(timeout time.Duration) time.Duration { return timeout * 9 / 10 }

// lockTimeout is how long a statement waits for a row before its batch continues without that row. It is
// shorter than the server's deadlock_timeout, so a deadlock would end here without being reported as one.
// Tests that look for deadlocks set a shorter deadlock_timeout.
func lockTimeout(timeout time.Duration) time.Duration { return min(100*time.Millisecond, timeout/10) }

func (s *Space) poolConfig(conns int) (*pgxpool.Config, error) {
	config := s.config
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
	// After a ping without answer, there must be time for another connection: see live.
	pool.PingTimeout = config.Timeout / 5
	pool.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		if p.IdleDuration > time.Second {
			p.Conn.PgConn().CustomData()[rested] = true
		}
		return false // see live
	}
	pool.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		now, err := s.server.now(ctx)
		if err != nil {
			return err
		}
		s.suit(now)
		*conn = *now
		return nil
	}
	pool.AfterConnect = s.setUp
	if s.tracer != nil { // a nil *tracer in the interface would not equal nil
		pool.ConnConfig.Tracer = s.tracer
	}
	return pool, nil
}

// connConfig makes the configuration of connections to a URL. accept decides whether to use a server.
func (s *Space) connConfig(url string, accept func(primary) error) (*pgx.ConnConfig, error) {
	pool, err := pgxpool.ParseConfig(url) // the URL may have parameters of the pool
	if err != nil {
		return nil, fmt.Errorf("store/postgres: %w", err) // pgx leaves the password out
	}
	conn := pool.ConnConfig
	if hosts := hostsOf(conn); conn.ConnectTimeout == 0 && hosts > 1 {
		conn.ConnectTimeout = min(hostPatience, s.config.Timeout/time.Duration(hosts+1))
	} else if conn.ConnectTimeout == 0 || conn.ConnectTimeout > s.config.Timeout {
		conn.ConnectTimeout = s.config.Timeout
	}
	if conn.ValidateConnect == nil { // of several hosts, use the one that accepts writes
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	var hosts *hostNames
	if hostsOf(conn) > 1 {
		hosts = &hostNames{}
		conn.LookupFunc = hosts.noting(conn.LookupFunc)
	}
	conn.ValidateConnect = s.recognize(conn.ValidateConnect, hosts, accept)
	if _, ok := conn.RuntimeParams["application_name"]; !ok {
		conn.RuntimeParams["application_name"] = applicationName
	}
	conn.RuntimeParams["client_encoding"] = clientEncoding
	conn.OnNotice = noteWarning
	if s.tracer != nil {
		conn.Tracer = s.tracer
	}
	return conn, nil
}

func hostsOf(conn *pgx.ConnConfig) int {
	hosts := map[string]bool{}
	for _, w := range waysTo(&conn.Config) { // a host may be listed again without TLS
		hosts[net.JoinHostPort(w.Host, fmt.Sprint(w.Port))] = true
	}
	return len(hosts)
}

// isPooled reports whether a pooler gives each transaction to any session. Then sessions keep no settings,
// except that of a listener with its own URL.
func (s *Space) isPooled() bool { return s.pooled.Load() }

// suit makes statements unnamed if sessions are shared, because another session would not know a name.
func (s *Space) suit(conn *pgx.ConnConfig) {
	if s.isPooled() {
		conn.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
}

// setUp checks the server of a new connection, and sets up its session unless sessions are shared.
func (s *Space) setUp(ctx context.Context, conn *pgx.Conn) error {
	// The pool's context has no deadline, and the pool of the renewals has only one connection.
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var (
		process  uint32
		encoding string
		version  int
		now      int64
	)
	err := s.measured(ctx, sqlConnectionCheck, func(sql string) error {
		return conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&process, &encoding, &version, &now)
	})
	if err != nil {
		return err
	}
	s.clock.heard(time.UnixMicro(now))
	s.unflushed.madeConnection()
	if version < oldestServer {
		return fmt.Errorf("the server is PostgreSQL %d; locksidecar needs 14 or later", version/10000)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the database's encoding is %s; keys are UTF-8 and need a database in UTF8", encoding)
	}
	if s.config.Listen == ListenAuto && process != conn.PgConn().PID() && !s.pooled.Swap(true) {
		s.log.Info("a connection pooler is in use: LISTEN and named statements are off, and the sidecar polls for hand-offs of other pods; " +
			"set LOCKSIDECAR_POSTGRES_LISTEN_URL to a URL past the pooler to use LISTEN")
		return errShared
	}
	if s.isPooled() {
		return nil
	}
	return s.setUpSession(ctx, conn)
}

func (s *Space) setUpSession(ctx context.Context, conn *pgx.Conn) error {
	return s.measured(ctx, sqlConnectionSetUp, func(sql string) error {
		_, err := conn.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, s.settings(false)...)...)
		return err
	})
}

// settings are the arguments of the statement that sets up a session, or with local a transaction.
func (s *Space) settings(local bool) []any {
	limit := millis(statementTimeout(s.config.Timeout))
	return []any{limit, millis(s.lockTimeout), limit, local}
}

func millis(d time.Duration) string {
	return fmt.Sprint(max(1, d.Milliseconds())) // 0 would mean no limit
}

const warned = "locksidecar.warned"

// rested is set in the custom data of a connection that was idle.
const rested = "locksidecar.rested"

// noteWarning records that the server stopped waiting for a synchronous standby. The server then reports
// success, although a failover can lose the commit.
func noteWarning(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Routine == "SyncRepWaitForLSN" { // this notice has no SQLSTATE of its own
		conn.CustomData()[warned] = true
	}
}

// doubt requests a check of the server, and returns at once.
func (s *Space) doubt() {
	select {
	case s.doubts <- struct{}{}:
	default:
	}
}

func (s *Space) watch(ctx context.Context, r *running) {
	for {
		s.reach(ctx, r)
		select {
		case <-ctx.Done():
			return
		case <-s.doubts:
		}
	}
}

// reach checks the server until it can be used, and logs each new error. After a failure it drops the old
// connections, because each would fail one more operation with an unknown outcome. The renewals keep their
// connection until another can be made, because the server may refuse logins while a password is replaced.
func (s *Space) reach(ctx context.Context, r *running) {
	broken := false
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err := s.look(ctx, r.main)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errShared) {
			continue
		}
		switch {
		case err == nil && broken:
			r.renewalPool.Reset()
		case err != nil && !notLetIn(err):
			r.main.Reset()
			broken = true
		}
		s.become(err)
		if err == nil {
			return
		}
		if _, ok := errors.AsType[*TooOldError](err); ok {
			s.config.TooOld(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func (s *Space) become(why error) {
	was := s.enter(why)
	switch { // the mutex is free here: every operation takes it, and logging can be slow
	case was == nil:
	case why == nil && was.why != nil:
		s.log.Info("the store is ready")
		s.listener.poke() // the listener may wait for this
	case why != nil && (was.why == nil || kindOf(was.why) != kindOf(why)):
		s.log.Warn("the store is not ready", "error", why)
	}
}

// enter sets the state and returns the previous one, or nil if the store has stopped.
func (s *Space) enter(why error) (was *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	was = s.state.Load()
	_, outdated := errors.AsType[*outdatedError](why)
	s.state.Store(&state{why: why, usable: why == nil || was.usable && !outdated})
	return was
}

// kindOf classifies an error. The error's text is unsuitable, because it contains the local port.
func kindOf(err error) string {
	if code := sqlState(err); code != "" {
		return code
	}
	// These errors need an operator, so they are logged again after an outage.
	if _, ok := errors.AsType[*oldError](err); ok {
		return "old primary"
	}
	if _, ok := errors.AsType[*strangerError](err); ok {
		return "another cluster"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "certificate"
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return "no connection"
	}
	return err.Error()
}

func (s *Space) look(ctx context.Context, pool *pgxpool.Pool) error {
	looking, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	found, err := findSchema(func(sql statement, into ...any) error { return s.readRow(looking, pool, sql, into...) })
	if err != nil {
		return err
	}
	if found.outdated() && s.config.AutoMigrate {
		conn, err := s.server.now(looking)
		if err != nil {
			return err
		}
		from, to, err := own.migrate(ctx, conn, func(busy error) { s.become(&outdatedError{busy}) })
		if err != nil {
			return &outdatedError{err}
		}
		if from != to {
			s.log.Info("the schema was migrated", "from", from, "to", to)
		}
	} else if err := found.problem(); err != nil {
		return err
	}
	return s.inspect(looking, pool)
}

// readRow runs a statement that returns at most one row, on a server that may be a standby.
func (s *Space) readRow(ctx context.Context, pool *pgxpool.Pool, sql statement, into ...any) error {
	o := &operation{Store: s.own, pool: pool, looking: true}
	found, _, err := runOnce(ctx, o, sql, nil, func(rows pgx.Rows, _ *struct{}) error { return rows.Scan(into...) })
	if err == nil && len(found) == 0 {
		err = pgx.ErrNoRows
	}
	return err
}

func (s *Space) inspect(ctx context.Context, pool *pgxpool.Pool) error {
	var (
		now                                     time.Time
		fsync, fullPages, commit, isolation, ro string
		standby                                 bool
		notLogged, cached                       []string
		source                                  string
		mayTake                                 bool
	)
	err := s.readRow(ctx, pool, sqlServer, &now, &standby, &fsync, &fullPages, &commit, &isolation, &ro, &notLogged, &cached, &source, &mayTake)
	if err != nil {
		return err
	}
	s.clock.heard(now)
	if standby {
		return errStandby
	}
	if len(notLogged) > 0 {
		return fmt.Errorf("not logged, so a crash of the server would lose grants: %s; ALTER … SET LOGGED them",
			strings.Join(notLogged, ", "))
	}
	if len(cached) > 0 {
		return fmt.Errorf("each session would draw numbers in advance, so a later grant could get a smaller one: %s; ALTER SEQUENCE … CACHE 1",
			strings.Join(cached, ", "))
	}
	s.readsOnly.Store(!mayTake)
	if !mayTake {
		s.sayOnce(slog.LevelInfo, "the database role may only read: this sidecar shows locks and grants none")
	} else if err := s.inspectSource(ctx, pool, source); err != nil {
		return err
	}
	if fsync != "on" || fullPages != "on" {
		s.sayOnce(slog.LevelWarn, "a crash of the database's machine can lose grants", "fsync", fsync, "full_page_writes", fullPages)
	}
	if isolation != "read committed" || ro != "off" || commit == "off" || commit == "local" {
		s.sayOnce(slog.LevelInfo, "the database has defaults that are not safe for locks; the sidecar sets its own",
			"default_transaction_isolation", isolation, "default_transaction_read_only", ro, "synchronous_commit", commit)
	}
	return nil
}

// inspectSource checks whether a failover would be noticed, and reads the server's history.
func (s *Space) inspectSource(ctx context.Context, pool *pgxpool.Pool, source string) error {
	err := s.learn(ctx, pool)
	if answered(err) {
		return &sourceError{source, err}
	}
	if err == nil && source == "none" {
		s.sayOnce(slog.LevelWarn, "no failover of the database is noticed (its history source is none): after one, tokens may decrease, "+
			"and locks may be granted to others although their holders live")
	}
	return err
}

// sourceError: this role may not read the server's identity (meta.source).
type sourceError struct {
	source string
	error
}

func (e *sourceError) Unwrap() error { return e.error }

func (e *sourceError) Error() string {
	return fmt.Sprintf("a failover would not be noticed: the database's history source is %q, and the server refuses it to this role: %v; "+
		"grant EXECUTE, or run `SELECT locksidecar.use_history_source('server')` as the owner of the schema", e.source, e.error)
}

func (s *Space) sayOnce(level slog.Level, text string, args ...any) {
	if _, said := s.said.LoadOrStore(text+fmt.Sprint(args...), true); !said {
		s.log.Log(context.Background(), level, text, args...) //nolint:sloglint // constants of the callers
	}
}
