package mysql_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
)

// stalling starts a server whose log does not reach the disk while a file exists.
func stalling(t *testing.T) (m *mysqltest.Server, file string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "lsmy-stall-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o777); err != nil { // for the server's user
		t.Fatal(err)
	}
	library := filepath.Join(folder, "stall.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, "testdata/stall.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("a C compiler is needed, as for the race detector: %v\n%s", err, out)
	}
	file = filepath.Join(folder, "stalled")
	// On a disk: InnoDB maps a log in memory, and each change is there at once. Without a binary log, because MySQL shows a commit
	// only after that has it. Without statistics in tables, because a server that writes them in the background would wait with locks.
	return mysqltest.Start(t, mysqltest.OnDisk(), mysqltest.WithFlag("--skip-log-bin"), mysqltest.WithFlag("--innodb-stats-persistent=OFF"), mysqltest.WithEnv("LD_PRELOAD="+library, "STALL_FILE="+file)), file
}

// stall keeps the log from the disk until the returned function is called.
func stall(t *testing.T, file string) (end func()) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(file) }
}

// held waits until the log is kept from the disk.
func held(t *testing.T, file string) {
	t.Helper()
	await.Until(t, "a write of the log is held", func() bool {
		_, err := os.Stat(file + ".held")
		return err == nil
	})
}

// notWithin fails if something is told in a time in which all could be.
func notWithin[T any](t *testing.T, told <-chan T, what string) {
	t.Helper()
	select {
	case v := <-told:
		t.Fatalf("%s before the disk had it: %+v", what, v)
	case <-time.After(time.Second):
	}
}

// A server shows a commit before its disk has it, and a crash forgets it then. Whoever only reads a grant is told after the
// disk has it.
// Proves: A8
func TestAGrantThatIsReadIsOnTheDisk(t *testing.T) {
	t.Parallel()
	m, file := stalling(t)
	s := on(t, m)
	s.limit = await.Patience
	reader := s.ready("reader")
	owner := castest.Spaces(t, s, 1)[0].View(store.Identity{Namespace: "ns", Instance: "owner", Pod: "owner"})
	if err := owner.Start(t.Context(), func(store.News) {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(owner.Stop)
	ask := store.Ask{Attempt: store.Attempt{Key: "key", ID: uuid.New()}, Lease: uuid.New()}
	if err := owner.OpenLeases(t.Context(), []store.NewLease{{ID: ask.Lease, TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	asked := func() chan store.Outcome {
		told := make(chan store.Outcome, 1)
		go func() {
			answers, err := owner.Acquire(t.Context(), []store.Ask{ask})
			if err != nil {
				t.Error(err)
			}
			told <- answers[0].Outcome
		}()
		return told
	}
	reader.Done(cas.Swap{Key: "ns/warm", Data: []byte("x")}) // MariaDB writes statistics when a new table is opened, which would wait
	reader.LoadOne("ns/warm")
	end := stall(t, file)
	first := asked()
	await.Until(t, "others see the grant", func() bool { return reader.LoadOne("ns/key").Version > 0 })
	held(t, file)
	again := asked() // its answer needs no swap
	notWithin(t, again, "a grant that was only read was told")
	await.Silent(t, first, "answer of the swap")
	end()
	for _, told := range []chan store.Outcome{first, again} {
		if outcome := await.Receive(t, told, "the answer"); outcome != store.Granted {
			t.Errorf("the answer is %v", outcome)
		}
	}
}

// The same for a letter, also if the reader's connection breaks while it deletes the letter: a second deletion would change nothing,
// and so wait for no disk.
// Proves: A8
func TestALetterIsOnTheDisk(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]bool{"read": false, "the connection breaks": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, file := stalling(t)
			s := on(t, m)
			s.limit = await.Patience
			writer := s.ready("writer")
			link := process.NewLink(t, m.Address)
			s.url = s.At(link.Address)
			reader := s.ready("reader")
			watcher := s.session()
			count := func() (records, letters int) {
				reader.Must(watcher.QueryRowContext(reader.Ctx, "SELECT (SELECT COUNT(*) FROM locksidecar_locks), (SELECT COUNT(*) FROM locksidecar_letters)").Scan(&records, &letters))
				return records, letters
			}
			writer.Write("reader", 1) // all have used the tables: MariaDB writes statistics when a new one is opened, which would wait
			reader.Reads(1)
			count()
			end := stall(t, file)
			var writing sync.WaitGroup
			writing.Go(func() { writer.Write("reader", 2) })
			await.Until(t, "the letter is written and deleted, but neither is on the disk", func() bool {
				records, letters := count()
				return records == 2 && letters == 0
			})
			held(t, file)
			if breaks {
				link.CutAll()
			}
			notWithin(t, reader.Letters, "a letter was delivered")
			end()
			writing.Wait()
			if breaks {
				await.Receive(t, reader.Lost, "the loss of letters")
			} else {
				reader.Reads(2)
			}
		})
	}
}
