package instance

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

func begin(t *testing.T, in Runs, name string) *Run {
	t.Helper()
	r, err := in.Begin(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// crash ends a run as kill -9 does: the system gives up its lock.
func (r *Run) crash(t *testing.T) {
	t.Helper()
	if err := r.lock.Close(); err != nil {
		t.Fatal(err)
	}
}

func note(t *testing.T, r *Run, n Noted) (name string) {
	t.Helper()
	name, err := r.Note(n)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

var place = Place{Store: "postgres locks", Hosts: []string{"db:5432"}}

func take(t *testing.T, r *Run, name string) *Ended {
	t.Helper()
	e, lives, err := r.Take(name)
	if err != nil {
		t.Fatal(err)
	}
	if lives && e != nil {
		t.Error("a living run is taken")
	}
	return e
}

// Only a run that has ended is taken, by one other run, with what it has noted and not forgotten.
func TestOnlyEndedRunsAreTaken(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	living, dead, next := begin(t, in, "living"), begin(t, in, "dead"), begin(t, in, "next")
	left := Noted{Pod: "a", Namespace: "shop", Instance: "web-0-01234567@v1"}
	var livingNote string
	for _, r := range []*Run{dead, living} {
		livingNote = note(t, r, left)
		if err := r.Forget(note(t, r, Noted{Pod: "b", Namespace: "shop", Instance: "x"})); err != nil {
			t.Fatal(err)
		}
	}
	// A file that was not written to its end, and a socket's.
	if err := errors.Join(os.WriteFile(in.Folder("dead")+"/c.fresh", nil, 0o600), os.WriteFile(in.Folder("dead")+"/a.s", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if names, err := next.Others(); err != nil || len(names) != 2 {
		t.Errorf("others: %q, %v", names, err)
	}
	if e := take(t, next, "dead"); e != nil {
		t.Error("a living run is taken")
	}
	dead.crash(t)
	e := take(t, next, "dead")
	if e == nil || !slices.Equal(slices.Collect(maps.Values(e.Left)), []Noted{left}) {
		t.Fatalf("left: %+v", e)
	}
	if take(t, next, "dead") != nil {
		t.Error("a run is taken twice")
	}
	if take(t, next, "living") != nil {
		t.Error("a living run is taken")
	}

	// This run ends before it has reaped the instance. A later run finds it again.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = take(t, next, "dead")
	if e == nil || !slices.Equal(slices.Collect(maps.Values(e.Left)), []Noted{left}) {
		t.Fatalf("left: %+v", e)
	}
	for name := range e.Left {
		if err := e.Reaped(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err := next.Others(); err != nil || len(names) != 1 || names[0] != "living" {
		t.Errorf("others: %q, %v", names, err)
	}

	// A run that has forgotten all leaves nothing. One that has not leaves it to the next.
	again := note(t, next, left)
	if err := errors.Join(living.Forget(livingNote), living.End(), next.End()); err != nil {
		t.Fatal(err)
	}
	last := begin(t, in, "last")
	if names, err := last.Others(); err != nil || len(names) != 1 || take(t, last, names[0]).Left[again] != left {
		t.Errorf("others: %q, %v", names, err)
	}
}

// A run that has taken the current one, and waits for its store, holds up no other one, because the taken one has ended. What one run takes, no other one does.
func TestTakenRunHasEnded(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	one, two, again := begin(t, in, "one"), begin(t, in, "two"), begin(t, in, "again")
	note(t, two, Noted{Pod: "a", Namespace: "n", Instance: "i"})
	if err := errors.Join(one.TakeOver(place), two.TakeOver(place)); err != nil {
		t.Fatal(err)
	}
	two.crash(t)
	taken := take(t, again, "two")
	if taken == nil {
		t.Fatal("not taken")
	}
	if e, lives, err := one.Take("two"); e != nil || lives || err != nil {
		t.Errorf("taken again: %v, lives: %t, %v", e, lives, err)
	}
	if err := one.IfCurrent(func() error { return nil }); err != nil {
		t.Errorf("the run that is alive serves nobody: %v", err)
	}
	if _, lives, err := one.Take("again"); !lives || err != nil {
		t.Errorf("a living run: lives %t, %v", lives, err)
	}
	if e, lives, err := one.Take("no such run"); e != nil || lives || err != nil {
		t.Errorf("a run without files: %v, lives: %t, %v", e, lives, err)
	}
	runtime.KeepAlive([]any{taken, again}) // a lock ends with its file, which would be closed as garbage
}

// A run that is not locked yet is not seen, so it cannot be taken for one that has ended.
func TestBeginningRunIsNotSeen(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	r := begin(t, in, "r")
	if err := errors.Join(os.Mkdir(in.Folder("new"), 0o700), os.WriteFile(in.lockOf("new")+freshEnd, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if names, err := r.Others(); err != nil || len(names) > 0 {
		t.Errorf("others: %q, %v", names, err)
	}
	if _, err := in.Begin("r"); err == nil {
		t.Error("two runs have one name")
	}
}

// The run that took over last is the current one.
func TestCurrentRun(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	one, two := begin(t, in, "one"), begin(t, in, "two")
	calls := 0
	f := func() error { calls++; return nil }
	if err := errors.Join(one.TakeOver(place), one.IfCurrent(f)); err != nil || calls != 1 {
		t.Error(err, calls)
	}
	if err := two.TakeOver(place); err != nil {
		t.Fatal(err)
	}
	if err := one.IfCurrent(f); !errors.Is(err, ErrNotCurrent) || calls != 1 {
		t.Error(err, calls)
	}
	// If the current run ends, another one may go on: also if it has taken what that one left.
	note(t, two, Noted{Pod: "a", Namespace: "n", Instance: "i"})
	two.crash(t)
	if e := take(t, one, "two"); e == nil {
		t.Fatal("not taken")
	}
	if err := one.IfCurrent(f); err != nil || calls != 2 {
		t.Error(err, calls)
	}
	three := begin(t, in, "three")
	if err := errors.Join(three.TakeOver(place), three.End(), one.IfCurrent(f)); err != nil || calls != 3 {
		t.Error(err, calls)
	}
	four := begin(t, in, "four")
	if err := errors.Join(four.TakeOver(place)); err != nil {
		t.Fatal(err)
	}
	if err := one.IfCurrent(f); !errors.Is(err, ErrNotCurrent) || calls != 3 {
		t.Error(err, calls)
	}
	two = four
	if err := errors.Join(one.Resign(), two.IfCurrent(f)); err != nil || calls != 4 {
		t.Error(err, calls)
	}
	if err := errors.Join(two.Resign(), one.IfCurrent(f)); err != nil || calls != 5 {
		t.Error(err, calls)
	}
	if err := two.IfCurrent(f); !errors.Is(err, ErrNotCurrent) {
		t.Error(err)
	}
	two = one
	fails := errors.New("it fails")
	if err := two.IfCurrent(func() error { return fails }); !errors.Is(err, fails) {
		t.Error(err)
	}
}

// A pod that is served again has a note of its own, because the instance before may still have leases.
func TestNotesOfOnePod(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	dead, next := begin(t, in, "dead"), begin(t, in, "next")
	first, second := Noted{Pod: "a", Namespace: "n", Instance: "i-1"}, Noted{Pod: "a", Namespace: "n", Instance: "i-2"}
	note(t, dead, first)
	if err := dead.Forget(note(t, dead, second)); err != nil {
		t.Fatal(err)
	}
	dead.crash(t)
	if e := take(t, next, "dead"); e == nil || !slices.Equal(slices.Collect(maps.Values(e.Left)), []Noted{first}) {
		t.Errorf("left: %+v", e)
	}
}

// A run does not take over while another one lives whose locks are in another place. One that has never served does not count.
func TestRunsWithLocksElsewhere(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]Place{
		"another database": {Store: "postgres other", Hosts: place.Hosts},
		"other hosts":      {Store: place.Store, Hosts: []string{"db2:5432"}},
		"other namespaces": {Store: place.Store, Hosts: place.Hosts, Namespaces: map[string]string{"shop-canary": "shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := RunsIn(t.TempDir())
			old, next, third := begin(t, in, "old"), begin(t, in, "next"), begin(t, in, "third")
			if err := old.TakeOver(place); err != nil {
				t.Fatal(err)
			}
			err := next.TakeOver(other)
			if e, ok := errors.AsType[*ElsewhereError](err); !ok || e.Run != "old" || !strings.Contains(err.Error(), "postgres locks at db:5432") {
				t.Errorf("take-over: %v", err)
			}
			more := Place{Store: place.Store, Hosts: []string{"standby:5432", "db:5432"}}
			if err := errors.Join(old.IfCurrent(func() error { return nil }), third.TakeOver(more)); err != nil {
				t.Errorf("a run that has never served is in the way: %v", err)
			}
			if err := errors.Join(third.End(), old.Resign()); err != nil {
				t.Fatal(err)
			}
			if _, ok := errors.AsType[*ElsewhereError](next.TakeOver(other)); !ok {
				t.Error("a run that drains has locks, and is not seen")
			}
			old.crash(t)
			if err := next.TakeOver(other); err != nil {
				t.Errorf("a run that has ended is in the way: %v", err)
			}
		})
	}
}

// A run that is frozen in its turn holds up the others for a limited time.
func TestFrozenTurn(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	r := begin(t, in, "r")
	r.patience = 20 * time.Millisecond
	frozen, err := os.OpenFile(filepath.Join(in.path, "turn"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(frozen.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	tried := make(chan error, 1)
	go func() { tried <- r.TakeOver(place) }()
	if err := await.Receive(t, tried, "the end of the wait"); !errors.Is(err, ErrNoTurn) {
		t.Errorf("take-over: %v", err)
	}
	if err := frozen.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.TakeOver(place); err != nil {
		t.Error(err)
	}
}

// A file that cannot be written leaves the one that was there.
func TestReplaceFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := replaceFile(path, []byte("good")); err != nil {
		t.Fatal(err)
	}
	// As on a full disk, the file is made, and nothing is written into it.
	if err := os.Symlink("/dev/full", path+freshEnd); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, []byte("bad")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error: %v", err)
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Fatalf("the file is replaced: %v, %v", info, err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "good" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Lstat(path + freshEnd); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfinished file stays: %v", err)
	}
}

// A note that cannot be read now is not taken for an unfinished one.
func TestUnreadableNote(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	dead, next := begin(t, in, "dead"), begin(t, in, "next")
	name := note(t, dead, Noted{Pod: "a", Namespace: "n", Instance: "i"})
	dead.crash(t)
	path := filepath.Join(in.Folder("dead"), name)
	e := &Ended{Name: "dead", runs: in, Left: map[string]Noted{}}
	fails := errors.New("too many open files")
	if err := e.read(func(string) ([]byte, error) { return nil, fails }); !errors.Is(err, fails) {
		t.Errorf("read: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the note is removed: %v", err)
	}
	if e := take(t, next, "dead"); e == nil || len(e.Left) != 1 {
		t.Errorf("left: %+v", e)
	}
}

// A run that cannot begin leaves nothing, because no later run would find it.
func TestFailedBegin(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	if err := os.Mkdir(in.lockOf("r")+freshEnd, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Begin("r"); err == nil {
		t.Error("no error")
	}
	if entries, err := os.ReadDir(in.path); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
