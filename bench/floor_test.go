package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store/postgres"
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
	if _, _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	held := map[string]string{ // by the kind of floor that holds them
		"alone": "SELECT count(*) FROM direct_locks", "together": "SELECT count(*) FROM direct_locks",
		"granting": "SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL AND token > 0",
	}
	folder, err := os.MkdirTemp("", "lsb") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	t.Chdir("..")
	for _, kind := range slices.Sorted(maps.Keys(floorKinds)) {
		socket := filepath.Join(folder, kind)
		ended := make(chan error, 1)
		server, listener, err := newFloor(kind, socket, url)
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
			t.Errorf("%s: %v", kind, err)
		}
		if sql := held[kind]; sql != "" {
			n := 0
			if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil || n != len(conns) {
				t.Errorf("%s: %d rows, want those %d that were acquired and not released; %v", kind, n, len(conns), err)
			}
		}
		if _, err := conns[0].acquire(deniedKey(1), nil); err == nil {
			t.Errorf("%s: a lock was granted that another holds", kind)
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
