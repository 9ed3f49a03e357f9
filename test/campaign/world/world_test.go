package world

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

var binaryFolder string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "cw")
	if err != nil {
		panic(err)
	}
	binaryFolder = folder
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// start starts a world of two sidecars and an app that does nothing.
func start(t *testing.T) *World {
	t.Helper()
	program, err := Build(binaryFolder)
	if err != nil {
		t.Fatal(err)
	}
	return Start(t, Config{
		Folder: Folder(t), Logs: t.TempDir(), Binary: program, Sidecars: 2, Apps: 1,
		Settings: map[string]string{"TTL": "2s"},
		App:      func(string, string, []string) *exec.Cmd { return exec.Command("sleep", "1h") },
	})
}

func TestWorld(t *testing.T) {
	w := start(t)
	if err := w.Healthy(); err != nil {
		t.Fatal(err)
	}
	if err := w.Failed(); err != nil {
		t.Error(err)
	}
	w.Postgres.crash(t)
	if err := w.Failed(); err == nil || !strings.Contains(err.Error(), "crashed 1 times") {
		t.Errorf("after a crash: %v", err)
	}
	deadlock(t, w.Postgres.URL())
	if err := w.Failed(); err == nil || !strings.Contains(err.Error(), "deadlock") {
		t.Errorf("after a deadlock: %v", err)
	}
}

// crash ends a backend as damaged memory does, and waits until the server has started anew.
func (p *Postgres) crash(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := syscall.Kill(int(conn.PgConn().PID()), syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)"); err == nil {
		t.Error("the backend did not end")
	}
	err = await("the server logs the crash", func() error {
		if p.logged("was terminated by signal 11") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := errors.Join(err, p.Recovered()); err != nil {
		t.Fatal(err)
	}
}

// deadlock lets two transactions wait for each other until the server ends one.
func deadlock(t *testing.T, url string) {
	t.Helper()
	var failed atomic.Int64
	first := make(chan struct{}, 2)
	ready := make(chan struct{})
	var both sync.WaitGroup
	for i := range 2 {
		both.Go(func() {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close(context.Background()) }()
			const lock = "SELECT pg_advisory_lock($1)"
			_, err = conn.Exec(t.Context(), lock, i)
			first <- struct{}{}
			<-ready
			if err == nil {
				_, err = conn.Exec(t.Context(), lock, 1-i)
			}
			if err != nil {
				failed.Add(1)
			}
		})
	}
	<-first
	<-first
	close(ready)
	both.Wait()
	if failed.Load() != 1 {
		t.Errorf("%d of the two failed", failed.Load())
	}
}
