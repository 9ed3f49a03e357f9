package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

const (
	versionTable = "locksidecar.goose_db_version"
	// migrationLock is the advisory lock of migrations: any number that nobody
	// else uses.
	migrationLock = 5_120_947_233_806_114_107
	// migrationLimit bounds a migration, and the wait for another pod's.
	migrationLimit = 10 * time.Minute
)

// schemaVersion is the schema that this package was written for: the number of its
// last migration.
var schemaVersion = lastMigration()

func lastMigration() int {
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		panic("store/postgres: no migrations") // embedded: cannot happen
	}
	number, _, _ := strings.Cut(strings.TrimPrefix(files[len(files)-1], "migrations/"), "_")
	version, err := strconv.Atoi(number)
	if err != nil {
		panic(fmt.Sprintf("store/postgres: migration: %v", err))
	}
	return version
}

// schema is what a database has.
type schema struct {
	version int // 0: none
	oldest  int // the oldest version that a sidecar may have been built for
}

func (s schema) outdated() bool { return s.version < schemaVersion }

// judge says why this package cannot work with a schema, or nil.
func (s schema) judge() error {
	switch {
	case s.version == 0:
		return errors.New("the database has no locksidecar schema: run `locksidecar migrate`")
	case s.outdated():
		return fmt.Errorf("the database's schema is version %d, this sidecar needs %d: run `locksidecar migrate`",
			s.version, schemaVersion)
	case s.oldest > schemaVersion:
		return fmt.Errorf("this sidecar is too old: it was built for schema version %d, the database's needs %d or later",
			schemaVersion, s.oldest)
	}
	return nil
}

// querier is a connection or a pool.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// findSchema asks with plain SELECTs: a current schema needs no right to change it. s
// records them; nil: nobody does.
func findSchema(ctx context.Context, db querier, s *Store) (schema, error) {
	ask := func(sql statement, into ...any) error {
		do := func(sql string) error { return db.QueryRow(ctx, sql).Scan(into...) }
		if s == nil {
			return do(sql.sql)
		}
		return s.measured(ctx, sql, do)
	}
	var exists bool
	if err := ask(sqlSchemaExists, &exists); err != nil || !exists {
		return schema{}, err
	}
	var found schema
	err := ask(sqlSchemaVersion, &found.version, &found.oldest)
	if errors.Is(err, pgx.ErrNoRows) {
		return schema{}, errors.New("the table locksidecar.meta is empty; it must have one row")
	}
	return found, err
}

// Migrate brings the schema of a database up to date and says from which version
// to which; 0 is no schema. Any number may run at the same time.
func Migrate(ctx context.Context, url string) (from, to int, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, 0, fmt.Errorf("store/postgres: %w", err)
	}
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return migrate(ctx, config)
}

// migrate lets one migrator after the other in, by an advisory lock that a
// transaction of its own holds for as long as the migrations run on another
// connection: it ends with the process, and a pooler cannot lose it.
func migrate(ctx context.Context, config *pgx.ConnConfig) (from, to int, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no named statements: there may be a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := setUpMigration(ctx, conn); err != nil {
		return 0, 0, err
	}
	tx, err := myTurn(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	found, err := findSchema(ctx, tx, nil) // somebody else may have been first
	if err != nil || !found.outdated() {
		return found.version, found.version, err
	}
	if err := apply(ctx, config); err != nil {
		return found.version, found.version, fmt.Errorf("migration from schema version %d to %d: %w",
			found.version, schemaVersion, err)
	}
	return found.version, schemaVersion, nil
}

// turnPause is how long a migrator waits before it asks again whether it is its turn.
const turnPause = 100 * time.Millisecond

// myTurn returns a transaction that has the advisory lock. It does not wait in the
// server: as many migrators as a pooler has connections would keep the one whose turn
// it is from getting its second.
func myTurn(ctx context.Context, conn *pgx.Conn) (pgx.Tx, error) {
	for {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return nil, err
		}
		var mine bool
		err = tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(migrationLock)).Scan(&mine)
		if err == nil && mine {
			return tx, nil
		}
		if err := errors.Join(err, tx.Rollback(ctx)); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(turnPause/2 + rand.N(turnPause)):
		}
	}
}

// setUpMigration takes a database's defaults out of a migration's way, in a session
// that is nobody else's.
func setUpMigration(ctx context.Context, conn *pgx.Conn) error {
	var process uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&process); err != nil || process != conn.PgConn().PID() {
		return err
	}
	for _, setting := range []string{
		"default_transaction_isolation = 'read committed'", "default_transaction_read_only = off",
		"statement_timeout = 0", "lock_timeout = 0", "idle_in_transaction_session_timeout = 0",
	} {
		if _, err := conn.Exec(ctx, "SET "+setting); err != nil {
			return err
		}
	}
	return nil
}

// apply runs the migrations that are missing.
func apply(ctx context.Context, config *pgx.ConnConfig) (err error) {
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(setUpMigration))
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := makeSchema(ctx, db); err != nil {
		return err
	}
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// makeSchema makes the schema in which goose keeps its table. An operator may have
// made it beforehand for a role that may not.
func makeSchema(ctx context.Context, db *sql.DB) error {
	var exists bool
	err := db.QueryRowContext(ctx, "SELECT to_regnamespace('locksidecar') IS NOT NULL").Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = db.ExecContext(ctx, "CREATE SCHEMA locksidecar")
	return err
}
