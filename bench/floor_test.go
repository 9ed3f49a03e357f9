package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/pgtest"
)

// A floor that leaves something out would be too low.
func TestFloorsAcquireAndRelease(t *testing.T) {
	url := pgtest.Start(t, pgtest.WithoutFsync()).NewDatabase(t)
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	if _, err := db.Exec(t.Context(), directTable); err != nil {
		t.Fatal(err)
	}
	rows := func() (n int) {
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM direct_locks").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	folder, err := os.MkdirTemp("", "lsb") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	for _, batches := range []bool{false, true} {
		socket := filepath.Join(folder, map[bool]string{false: "alone", true: "together"}[batches])
		ended := make(chan error, 1)
		server, listener, err := newFloor(socket, url, batches)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- server.Serve(listener) }()
		conns, err := dialMany([]string{socket}, 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := onEach(conns, func(c *conn, i int) error {
			operation, err := ownKey(c, i)
			for range 20 {
				if err == nil {
					err = operation()
				}
			}
			if err == nil {
				_, err = c.acquire(deniedKey(i), nil)
			}
			return err
		}); err != nil {
			t.Errorf("batches %v: %v", batches, err)
		}
		if n := rows(); n != len(conns) {
			t.Errorf("batches %v: %d rows, want those %d that were acquired and not released", batches, n, len(conns))
		}
		if _, err := conns[0].acquire(deniedKey(1), nil); err == nil {
			t.Errorf("batches %v: a lock was granted that another holds", batches)
		}
		if _, err := db.Exec(t.Context(), "TRUNCATE direct_locks"); err != nil {
			t.Fatal(err)
		}
		closeAll(conns)
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
