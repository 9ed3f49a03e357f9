package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
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

//go:embed schema/*.sql code/*.sql
var migrationFiles embed.FS

const (
	versionTable = "locksidecar.goose_db_version"
	// migrationLock is the advisory lock of migrations: an arbitrary number that other programs are unlikely to use.
	migrationLock = 5_120_947_233_806_114_107
	// migrationLimit limits a migration, including the wait for another pod's.
	migrationLimit = 10 * time.Minute

	// tableWait is how long a migration waits for a table in use. It is shorter than a sidecar's lockTimeout,
	// because all others queue behind the migration.
	tableWait = 50 * time.Millisecond
	// tableIdle is how long a migration may keep a table locked without a statement, if its program hangs.
	tableIdle = 10 * time.Second
	// tablePause is the longest pause before the migration tries again.
	tablePause = time.Second
)

type migrations struct {
	schema fs.FS // tables and indexes: numbered files that never change once released
	code   fs.FS // functions: replaced as a set after the last schema file
	last   int   // the version: the number of the schema's last file
}

// own are the migrations of this package. schemaVersion is the schema version that it was written for.
var (
	own           = ownMigrations()
	schemaVersion = own.last
)

func ownMigrations() migrations {
	tables, err := fs.Sub(migrationFiles, "schema")
	code, err2 := fs.Sub(migrationFiles, "code")
	if err := errors.Join(err, err2); err != nil {
		panic(fmt.Sprintf("store/postgres: %v", err)) // embedded: cannot happen
	}
	return migrationsIn(tables, code)
}

func migrationsIn(tables, code fs.FS) migrations {
	names, err := fs.Glob(tables, "*.sql")
	if err != nil || len(names) == 0 {
		panic("store/postgres: no migrations")
	}
	number, _, _ := strings.Cut(names[len(names)-1], "_")
	last, err := strconv.Atoi(number)
	if err != nil {
		panic(fmt.Sprintf("store/postgres: migration: %v", err))
	}
	return migrations{tables, code, last}
}

type schema struct {
	version int // 0: none
	oldest  int // the oldest version that a sidecar may have been built for
}

func (s schema) outdated() bool { return s.version < schemaVersion }

// TooOldError says that the schema needs a newer package than this one. Waiting does not help.
type TooOldError struct {
	// Version is this package's schema version. Oldest is the oldest one that the database allows.
	Version, Oldest int
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("this sidecar is too old for the database: it was built for schema version %d, the database needs %d or later: "+
		"run a newer release of locksidecar", e.Version, e.Oldest)
}

// outdatedError says why a missing schema, or one older than this package, is not used.
type outdatedError struct{ error }

func (e *outdatedError) Unwrap() error { return e.error }

func (s schema) problem() error {
	switch {
	case s.version == 0:
		return &outdatedError{errors.New("the database has no locksidecar schema: run `locksidecar migrate`")}
	case s.outdated():
		return &outdatedError{fmt.Errorf("the database's schema is version %d, this sidecar needs %d: run `locksidecar migrate`",
			s.version, schemaVersion)}
	case s.oldest > schemaVersion:
		return &TooOldError{Version: schemaVersion, Oldest: s.oldest}
	}
	return nil
}

// findSchema reads the version with plain SELECTs, so it needs no further right. read runs a statement that returns
// at most one row.
func findSchema(read func(sql statement, into ...any) error) (schema, error) {
	var exists bool
	if err := read(sqlSchemaExists, &exists); err != nil || !exists {
		return schema{}, err
	}
	var found schema
	err := read(sqlSchemaVersion, &found.version, &found.oldest)
	if errors.Is(err, pgx.ErrNoRows) {
		return schema{}, errors.New("the table locksidecar.meta is empty; it must have one row")
	}
	return found, err
}

// Migrate updates the schema of a database and returns the versions before and after. Version 0 means no
// schema. Several calls may run at the same time.
func Migrate(ctx context.Context, url string) (from, to int, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, 0, fmt.Errorf("store/postgres: %w", err)
	}
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return own.migrate(ctx, config, func(error) {})
}

// migrate admits one migrator at a time, by an advisory lock of a transaction on its own connection. The lock ends
// with the process, and a pooler cannot lose it. busy is called when a migration waits for other sessions.
func (m migrations) migrate(ctx context.Context, config *pgx.ConnConfig, busy func(error)) (from, to int, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	config = config.Copy()
	config.RuntimeParams["client_encoding"] = clientEncoding
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // no named statements, because there may be a pooler
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tx, err := myTurn(ctx, conn)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	found, err := m.look(ctx, tx) // another migrator may have finished meanwhile
	if err != nil || found.version >= m.last {
		return found.version, found.version, err
	}
	if err := m.apply(ctx, config, busy); err != nil {
		return found.version, found.version, fmt.Errorf("migration from schema version %d to %d: %w",
			found.version, m.last, err)
	}
	return found.version, m.last, nil
}

// look calls findSchema in an open transaction. It leaves no table locked, because a migration can change meta.
func (m migrations) look(ctx context.Context, tx pgx.Tx) (schema, error) {
	part, err := tx.Begin(ctx)
	if err != nil {
		return schema{}, err
	}
	found, err := findSchema(func(sql statement, into ...any) error { return part.QueryRow(ctx, sql.sql).Scan(into...) })
	return found, errors.Join(err, part.Rollback(ctx))
}

const turnPause = 100 * time.Millisecond

// myTurn returns a transaction with the advisory lock. It polls instead of waiting in the server, because
// waiting migrators could take all connections of a pooler.
func myTurn(ctx context.Context, conn *pgx.Conn) (pgx.Tx, error) {
	for {
		tx, err := beginMigration(ctx, conn, migrationSettings(0, 0, true))
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

// migrationSettings are the arguments of the statement that sets up a session, or with local a transaction. The
// statements of a migration have no limit. 0 means none.
func migrationSettings(lockTimeout, idle time.Duration, local bool) []any {
	return []any{"0", fmt.Sprint(lockTimeout.Milliseconds()), fmt.Sprint(idle.Milliseconds()), local}
}

func tableSettings(local bool) []any { return migrationSettings(tableWait, tableIdle, local) }

// setUpTables replaces a database's defaults in a session that is not shared.
func setUpTables(ctx context.Context, conn *pgx.Conn) error {
	var process uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&process); err != nil || process != conn.PgConn().PID() {
		return err
	}
	_, err := conn.Exec(ctx, sqlConnectionSetUp.sql, tableSettings(false)...)
	return err
}

// limited connects to change tables. Each transaction is set up, because a pooler may change sessions.
type limited struct{ driver.Connector }

type limitedConn struct{ *stdlib.Conn }

// Connect implements [driver.Connector].
func (l limited) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := l.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return limitedConn{conn.(*stdlib.Conn)}, nil
}

// BeginTx implements [driver.ConnBeginTx].
func (l limitedConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	tx, err := beginMigration(ctx, l.Conn.Conn(), tableSettings(true))
	return limitedTx{ctx, tx}, err
}

type limitedTx struct {
	ctx context.Context
	tx  pgx.Tx
}

func (t limitedTx) Commit() error   { return t.tx.Commit(t.ctx) }
func (t limitedTx) Rollback() error { return t.tx.Rollback(context.WithoutCancel(t.ctx)) }

// beginMigration begins a transaction that is set up. It is never idle with a default that would end it.
func beginMigration(ctx context.Context, conn *pgx.Conn, settings []any) (pgx.Tx, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{
		BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL idle_in_transaction_session_timeout = 0",
	})
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, sqlConnectionSetUp.sql, settings...); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx, nil
}

// errTableInUse: a report, backup or forgotten session must end before the migration can continue.
var errTableInUse = errors.New("another session uses a table that the migration must have to itself for a moment: " +
	"look for old transactions in pg_stat_activity")

// apply runs the missing migrations, each in a transaction of its own unless its file says otherwise, and
// then replaces the code. A step that finds a table in use gives up and is repeated, because all sidecars
// would queue behind it.
func (m migrations) apply(ctx context.Context, config *pgx.ConnConfig, busy func(error)) (err error) {
	db := sql.OpenDB(limited{stdlib.GetConnector(*config, stdlib.OptionAfterConnect(setUpTables), stdlib.OptionResetSession(setUpTables))})
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := makeSchema(ctx, db); err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, m.schema,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	for {
		_, err := provider.UpByOne(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			if err = m.replaceCode(ctx, db); err == nil {
				return nil
			}
		}
		switch {
		case err == nil:
			continue
		case !isRowLocked(err) && !repeatable(err):
			return err
		}
		busy(errTableInUse)
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), errTableInUse)
		case <-time.After(tablePause/2 + rand.N(tablePause/2)):
		}
	}
}

// replaceCode replaces the functions and records the version in one transaction, so an interrupted
// migration continues from the old version.
func (m migrations) replaceCode(ctx context.Context, db *sql.DB) error {
	names, err := fs.Glob(m.code, "*.sql")
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, name := range names {
		text, err := fs.ReadFile(m.code, name)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("code/%s: %w", name, err)
		}
	}
	// A new schema has version 0.
	if _, err := tx.ExecContext(ctx, "SELECT locksidecar.choose_history_source() FROM locksidecar.meta WHERE schema_version = 0"); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE locksidecar.meta SET schema_version = $1", m.last); err != nil {
		return err
	}
	return tx.Commit()
}

// makeSchema makes the schema for goose's table. An operator can do this beforehand for a role that may not.
func makeSchema(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var exists bool
	err = tx.QueryRowContext(ctx, "SELECT to_regnamespace('locksidecar') IS NOT NULL").Scan(&exists)
	if err != nil || exists {
		return err
	}
	if _, err := tx.ExecContext(ctx, "CREATE SCHEMA locksidecar"); err != nil {
		return err
	}
	return tx.Commit()
}
