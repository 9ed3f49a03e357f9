// Package pgroles lets tests use databases as sidecars do: with the roles of
// deploy/roles.sql, of which the one that migrates may change the schema, and the sidecars'
// may not.
package pgroles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// The roles. Admin is no superuser, and runs the script.
const (
	Migrator = "locksidecar_migrator"
	Sidecar  = "locksidecar"
	Reader   = "locksidecar_reader"
	Admin    = "admin"
)

// Template gives a cluster databases that have been migrated, and are the sidecars'.
func Template() pgtest.Option { return pgtest.WithTemplate(Sidecar, prepare) }

func prepare(url string) error {
	ctx := context.Background()
	script, err := findScript()
	if err != nil {
		return err
	}
	if err := run(ctx, url, makeAdmin); err != nil {
		return err
	}
	for range 2 { // before the first migration and once more after it, as it says
		if err := run(ctx, pgtest.As(url, Admin), script); err != nil {
			return err
		}
		if _, _, err := postgres.Migrate(ctx, pgtest.As(url, Migrator)); err != nil {
			return err
		}
	}
	return nil
}

// makeAdmin makes who may run the script in this database, unless a test has made it before.
const makeAdmin = `DO $$ BEGIN
	IF to_regrole('` + Admin + `') IS NULL THEN CREATE ROLE ` + Admin + ` LOGIN CREATEROLE; END IF;
	EXECUTE format('GRANT CREATE, CONNECT ON DATABASE %I TO ` + Admin + ` WITH GRANT OPTION', current_database());
END $$`

// findScript reads the script, which is above the folder of the package under test.
func findScript() (string, error) {
	path := filepath.Join("deploy", "roles.sql")
	for range 6 {
		if text, err := os.ReadFile(path); err == nil {
			return string(text), nil
		}
		path = filepath.Join("..", path)
	}
	return "", errors.New("pgroles: there is no deploy/roles.sql in any folder above")
}

// run carries out statements.
func run(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("pgroles: %w", err)
	}
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgroles: %w", err)
	}
	return nil
}
