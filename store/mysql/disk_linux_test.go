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
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// stalling starts a server whose log does not reach the disk while a file exists.
func stalling(t *testing.T) (m *mysqltest.Server, file string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "lsmy-stall-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil { // for the server's user
		t.Fatal(err)
	}
	library := filepath.Join(folder, "stall.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, "testdata/stall.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("a C compiler is needed, as for the race detector: %v\n%s", err, out)
	}
	file = filepath.Join(folder, "stalled")
	// On a disk: InnoDB maps a log in memory, and each change is there at once.
	return mysqltest.Start(t, mysqltest.OnDisk(), mysqltest.WithEnv("LD_PRELOAD="+library), mysqltest.WithEnv("STALL_FILE="+file)), file
}

// stall keeps the log from the disk until the returned function is called.
func stall(t *testing.T, file string) (end func()) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(file) }
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
func TestAGrantThatIsReadIsOnTheDisk(t *testing.T) {
	t.Parallel()
	m, file := stalling(t)
	s := on(t, m)
	s.limit = await.Patience
	reader := s.ready("reader")
	owner := cas.New(cas.Config{Backend: s.Open("owner").(expecting).Backend, Identity: store.Identity{Namespace: "ns", Instance: "owner", Pod: "owner"}, SweepTerm: -1})
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
	end := stall(t, file)
	first := asked()
	await.Until(t, "others see the grant", func() bool { return reader.LoadOne("ns/key").Version > 0 })
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

// The same for a letter.
func TestALetterIsOnTheDisk(t *testing.T) {
	t.Parallel()
	m, file := stalling(t)
	s := on(t, m)
	s.limit = await.Patience
	writer, reader := s.ready("writer"), s.ready("reader")
	end := stall(t, file)
	var writing sync.WaitGroup
	writing.Go(func() { writer.Write("reader", 1) })
	watcher := s.session()
	await.Until(t, "others see the letter", func() bool {
		var n int
		reader.Must(watcher.QueryRowContext(reader.Ctx, "SELECT COUNT(*) FROM locksidecar_letters WHERE mailbox = 'reader'").Scan(&n))
		return n > 0
	})
	notWithin(t, reader.Letters, "a letter was delivered")
	end()
	writing.Wait()
	reader.Reads(1)
}
