package world

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

// MariaDB waits until a time of day, which it reads ahead of this machine's.
func TestAWaitUntilATimeOfDay(t *testing.T) {
	c := newClock(t, Folder(t))
	server := mysqltest.Start(t, mysqltest.WithEnv(c.environment()...))
	c.Step(time.Hour)
	db, err := server.Connect("mysql")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	holder, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const lock = "SELECT GET_LOCK('one', 0.1), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	var got bool
	var now int64
	if err := holder.QueryRowContext(ctx, lock).Scan(&got, &now); err != nil || !got {
		t.Fatalf("the first session got the lock: %t, %v", got, err)
	}
	if ahead := time.Until(time.UnixMicro(now)); (ahead - time.Hour).Abs() > patience {
		t.Errorf("the clock was stepped by an hour, and is ahead by %s", ahead)
	}
	if err := db.QueryRowContext(ctx, lock).Scan(&got, &now); err != nil || got {
		t.Errorf("the second session, which waits for 0.1 s, got the lock: %t, %v", got, err)
	}
}
