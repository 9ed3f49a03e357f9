package main

import (
	"context"
	"database/sql"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver of database/sql
)

// Both peers keep locks as careful services do without us, on a connection for each who locks. The address is the
// driver's: user:password@tcp(host:port)/database.

// tables are those of the two.
var tables = []string{
	"CREATE TABLE IF NOT EXISTS direct_locks (name VARCHAR(255) NOT NULL PRIMARY KEY, owner VARCHAR(64) NOT NULL, expires_at DATETIME(6) NOT NULL) ENGINE = InnoDB",
	"CREATE TABLE IF NOT EXISTS direct_rows (name VARCHAR(255) NOT NULL PRIMARY KEY, n INT NOT NULL) ENGINE = InnoDB",
}

// mysqlTable takes over a row that is missing or has expired, and deletes it, with a commit each.
func mysqlTable(address string, workers int, hot bool) (operations []func() error, end func(), err error) {
	const (
		take = "INSERT INTO direct_locks (name, owner, expires_at) VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 15 SECOND) " +
			"ON DUPLICATE KEY UPDATE owner = IF(expires_at < UTC_TIMESTAMP(6), VALUES(owner), owner), " +
			"expires_at = IF(owner = VALUES(owner), VALUES(expires_at), expires_at)"
		give = "DELETE FROM direct_locks WHERE name = ? AND owner = ?"
	)
	return onMySQL(address, workers, func(ctx context.Context, conn *sql.Conn, i int) (func() error, error) {
		taking, err := conn.PrepareContext(ctx, take)
		if err != nil {
			return nil, err
		}
		giving, err := conn.PrepareContext(ctx, give)
		if err != nil {
			return nil, err
		}
		key, owner := keyOf(i, hot), fmt.Sprint("owner", i)
		return func() error {
			for {
				taken, err := taking.ExecContext(ctx, key, owner)
				if err != nil {
					return err
				}
				if n, err := taken.RowsAffected(); err != nil || n > 0 {
					break
				}
				time.Sleep(mathrand.N(pause)) // somebody else has it
			}
			_, err := giving.ExecContext(ctx, key, owner)
			return err
		}, nil
	})
}

// mysqlRows holds the lock of a row in an open transaction, which ends with its connection. It writes nothing.
func mysqlRows(address string, workers int, hot bool) (operations []func() error, end func(), err error) {
	return onMySQL(address, workers, func(ctx context.Context, conn *sql.Conn, i int) (func() error, error) {
		key := keyOf(i, hot)
		if _, err := conn.ExecContext(ctx, "INSERT IGNORE INTO direct_rows VALUES (?, 0)", key); err != nil {
			return nil, err
		}
		locking, err := conn.PrepareContext(ctx, "SELECT n FROM direct_rows WHERE name = ? FOR UPDATE")
		if err != nil {
			return nil, err
		}
		return func() error {
			if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
				return err
			}
			var n int
			if err := locking.QueryRowContext(ctx, key).Scan(&n); err != nil {
				return err
			}
			_, err := conn.ExecContext(ctx, "COMMIT")
			return err
		}, nil
	})
}

func onMySQL(address string, workers int, prepare func(context.Context, *sql.Conn, int) (func() error, error)) (operations []func() error, end func(), err error) {
	ctx := context.Background()
	db, err := sql.Open("mysql", address)
	if err != nil {
		return nil, func() {}, err
	}
	end = func() { _ = db.Close() }
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return nil, end, err
		}
	}
	for i := range workers {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, end, err
		}
		operation, err := prepare(ctx, conn, i)
		if err != nil {
			return nil, end, err
		}
		operations = append(operations, operation)
	}
	return operations, end, nil
}
