package instance

import (
	"errors"
	"os"
	"testing"
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
	left := Noted{Namespace: "shop", Instance: "web-0-01234567@v1"}
	for _, r := range []*Run{living, dead} {
		if err := errors.Join(r.Note("a", left), r.Note("b", left), r.Forget("b")); err != nil {
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
	if e == nil || len(e.Left) != 1 || e.Left["a"] != left {
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
	if e == nil || e.Left["a"] != left {
		t.Fatalf("left: %+v", e)
	}
	if err := errors.Join(e.Reaped("a"), e.Close()); err != nil {
		t.Fatal(err)
	}
	if names, err := next.Others(); err != nil || len(names) != 1 || names[0] != "living" {
		t.Errorf("others: %q, %v", names, err)
	}

	// A run that has forgotten all leaves nothing. One that has not leaves it to the next.
	if err := errors.Join(living.Forget("a"), living.End(), next.Note("a", left), next.End()); err != nil {
		t.Fatal(err)
	}
	last := begin(t, in, "last")
	if names, err := last.Others(); err != nil || len(names) != 1 || take(t, last, names[0]).Left["a"] != left {
		t.Errorf("others: %q, %v", names, err)
	}
}

// A run that has taken the current one, and waits for its store, holds up no other one, because the taken one has ended. What one run takes, no other one does.
func TestTakenRunHasEnded(t *testing.T) {
	t.Parallel()
	in := RunsIn(t.TempDir())
	one, two, again := begin(t, in, "one"), begin(t, in, "two"), begin(t, in, "again")
	if err := errors.Join(two.Note("a", Noted{Namespace: "n", Instance: "i"}), two.TakeOver()); err != nil {
		t.Fatal(err)
	}
	two.crash(t)
	if take(t, again, "two") == nil {
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
	if err := errors.Join(one.TakeOver(), one.IfCurrent(f)); err != nil || calls != 1 {
		t.Error(err, calls)
	}
	if err := two.TakeOver(); err != nil {
		t.Fatal(err)
	}
	if err := one.IfCurrent(f); !errors.Is(err, ErrNotCurrent) || calls != 1 {
		t.Error(err, calls)
	}
	// If the current run ends, another one may go on: also if it has taken what that one left.
	if err := two.Note("a", Noted{Namespace: "n", Instance: "i"}); err != nil {
		t.Fatal(err)
	}
	two.crash(t)
	if e := take(t, one, "two"); e == nil {
		t.Fatal("not taken")
	}
	if err := one.IfCurrent(f); err != nil || calls != 2 {
		t.Error(err, calls)
	}
	three := begin(t, in, "three")
	if err := errors.Join(three.TakeOver(), three.End(), one.IfCurrent(f)); err != nil || calls != 3 {
		t.Error(err, calls)
	}
	four := begin(t, in, "four")
	if err := errors.Join(four.TakeOver()); err != nil {
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
