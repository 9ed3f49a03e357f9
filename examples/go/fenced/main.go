// Command fenced shows the fencing token with database/sql: a worker that was away for longer than its lock lasted writes late, and the database refuses it.
//
// It needs a PostgreSQL that PGHOST, PGUSER and PGDATABASE name.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver; any other does as well

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

// errStale says that a later holder of the lock has written already.
var errStale = errors.New("the row has seen a greater fencing token")

func main() {
	log.SetFlags(0)
	if err := run(context.Background()); err != nil {
		log.Fatal("fenced: ", err)
	}
}

// withdraw changes the balance under the lock's token. The row keeps the greatest token that has written it, in the same statement as the change.
func withdraw(ctx context.Context, db *sql.DB, token int64, amount int) error {
	result, err := db.ExecContext(ctx, `UPDATE fenced_example SET balance = balance - $1, last_token = $2 WHERE id = 1 AND last_token <= $2`, amount, token)
	if err != nil {
		return err
	}
	written, err := result.RowsAffected()
	if err == nil && written == 0 {
		return errStale
	}
	return err
}

func run(ctx context.Context) (err error) {
	db, err := sql.Open("pgx", "") // its settings are those of the environment
	if err != nil {
		return err
	}
	defer func() {
		_, dropped := db.ExecContext(ctx, `DROP TABLE IF EXISTS fenced_example`)
		err = errors.Join(err, dropped, db.Close())
	}()
	for _, statement := range []string{
		`DROP TABLE IF EXISTS fenced_example`,
		`CREATE TABLE fenced_example (id int PRIMARY KEY, balance int NOT NULL, last_token bigint NOT NULL)`,
		`INSERT INTO fenced_example VALUES (1, 100, 0)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}

	client := locksidecar.New(locksidecar.Config{Name: "fenced"})
	defer client.Close() //nolint:errcheck // it ends the process's locks, and has no error

	// A worker gets the lock, and is away until the sidecar has taken the lock from it. A suspended machine would not look, as this one does not.
	late, err := client.Acquire(ctx, "account:1", locksidecar.MaxHold(100*time.Millisecond))
	if err != nil {
		return err
	}
	<-late.Lost()
	fmt.Printf("A has the token %d, and has lost its lock without looking\n", late.Token())

	err = client.Do(ctx, "account:1", func(ctx context.Context, lock *locksidecar.Lock) error {
		fmt.Printf("B has the token %d, and withdraws 50\n", lock.Token())
		return withdraw(ctx, db, lock.Token(), 50)
	})
	if err != nil {
		return err
	}

	if err := withdraw(ctx, db, late.Token(), 30); !errors.Is(err, errStale) {
		return errors.Join(errors.New("the late write of A was not refused"), err)
	}
	fmt.Println("A writes late, and is refused:", errStale)
	var balance int
	if err := db.QueryRowContext(ctx, `SELECT balance FROM fenced_example WHERE id = 1`).Scan(&balance); err != nil {
		return err
	}
	if balance != 50 {
		return fmt.Errorf("the balance is %d, want 50", balance)
	}
	return nil
}
