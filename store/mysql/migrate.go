package mysql

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/locksidecar/locksidecar/store/cas"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

const (
	// schemaVersion is the number of the last file in schema. This package was written for it.
	schemaVersion = 1
	versionTable  = "locksidecar_goose"
	// migrationLock is the name of a lock of the whole server.
	migrationLock = "locksidecar migration"
	// migrationLimit limits a migration, including the wait for that of another pod.
	migrationLimit = 10 * time.Minute
)

// TooOldError says that the tables need a newer package than this one. Waiting does not help.
type TooOldError struct {
	// Version is this package's schema version. Oldest is the oldest one that the database allows.
	Version, Oldest int
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("this sidecar is too old for the database: it was built for schema version %d, the database needs %d or later: "+
		"run a newer release of locksidecar", e.Version, e.Oldest)
}

// outdatedError says why missing tables, or older ones than this package, are not used.
type outdatedError struct{ error }

func (e *outdatedError) Unwrap() error { return e.error }

// problem is why tables of this version cannot be used. oldest is the oldest version that a sidecar may have been built for.
func problem(have, oldest int) error {
	switch {
	case have < schemaVersion:
		return &outdatedError{fmt.Errorf("the database's schema is version %d, this sidecar needs %d: run `locksidecar migrate`", have, schemaVersion)}
	case oldest > schemaVersion:
		return &TooOldError{Version: schemaVersion, Oldest: oldest}
	}
	return nil
}

// Migrate makes or updates the tables of a database and returns the versions before and after. Version 0 means no
// tables. Several calls may run at the same time.
func Migrate(ctx context.Context, url string) (from, to int, err error) {
	b, err := NewServer(Config{ServerConfig: cas.ServerConfig{URL: url}})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = b.main.Close() }()
	return b.migrate(ctx)
}

// migrate admits one migrator at a time, by a lock of the server that ends with its connection.
func (b *Server) migrate(ctx context.Context) (from, to int, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	db := sql.OpenDB(&connector{b: b, migrates: true})
	defer func() { _ = db.Close() }()
	lock, err := db.Conn(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = lock.Close() }()
	var mine sql.NullBool
	err = lock.QueryRowContext(ctx, "SELECT GET_LOCK(CONCAT('"+migrationLock+" ', LEFT(SHA2(DATABASE(), 256), 32)), "+fmt.Sprint(int(migrationLimit.Seconds()))+")").Scan(&mine)
	if err != nil {
		return 0, 0, err
	}
	if !mine.Bool {
		return 0, 0, errors.New("another migration does not end")
	}
	defer func() {
		_, _ = lock.ExecContext(context.WithoutCancel(ctx), "SELECT RELEASE_LOCK(CONCAT('"+migrationLock+" ', LEFT(SHA2(DATABASE(), 256), 32)))")
	}()
	schema, err := fs.Sub(schemaFiles, "schema")
	if err != nil {
		return 0, 0, err
	}
	provider, err := goose.NewProvider(goose.DialectMySQL, db, schema, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, 0, err
	}
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return 0, 0, err
	}
	if _, err := provider.Up(ctx); err != nil {
		return int(have), int(have), err
	}
	return int(have), max(int(have), schemaVersion), nil
}
