package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runInto starts a `locksidecar run` of k whose standard error is this file, and returns the group of its command.
func runInto(t *testing.T, s *sidecar, stderr *os.File) (run *exec.Cmd, group int) {
	t.Helper()
	file := filepath.Join(folder(t), "group")
	run = exec.Command(binary, "run", "k", "--grace", "1s", "--", "sh", "-c", `echo $$ >"$0.new" && mv "$0.new" "$0"; exec sleep 60`, file)
	run.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket)
	run.Stderr = stderr
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command's group", func() bool {
		text, err := os.ReadFile(file)
		if err == nil {
			group, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = syscall.Kill(-group, syscall.SIGKILL)
	})
	return run, group
}

// pipe returns the ends of a pipe, which are closed at the end of the test.
func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

// exitOf waits for the end of a process.
func exitOf(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return code(cmd.ProcessState)
	case <-time.After(patience):
		t.Fatalf("%q did not end in %s", cmd.Args, patience)
		return -1
	}
}

// TestRunEndsTheGroupThoughNobodyReads: a standard error that is full, as that of a terminal after Ctrl-S, does not keep CMD
// running after the loss of the lock.
func TestRunEndsTheGroupThoughNobodyReads(t *testing.T) {
	t.Parallel()
	s := start(t, options{"ALLOW_FORCE": "true"})
	_, w := pipe(t)
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err := error(nil); err == nil; {
		_, err = w.Write(make([]byte, 4096))
	}
	run, group := runInto(t, s, w)
	a := dial(t, s.socket)
	a.call("POST", stopPath("k"), "").want(202, "")
	a.call("DELETE", lockPath("k")+"?force=true", "").want(200, "")
	if exit := exitOf(t, run); exit != 77 {
		t.Errorf("exit code %d, want 77", exit)
	}
	wantGone(t, group)
}

// TestRunHoldsOnWithoutAReader: a closed standard error costs lines, but neither the lock nor CMD.
func TestRunHoldsOnWithoutAReader(t *testing.T) {
	t.Parallel()
	s := start(t, options{"ALLOW_FORCE": "true"})
	r, w := pipe(t)
	run, group := runInto(t, s, w)
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	a := dial(t, s.socket)
	a.call("POST", stopPath("k"), "").want(202, "")
	a.call("DELETE", lockPath("k")+"?force=true", "").want(200, "")
	if exit := exitOf(t, run); exit != 77 {
		t.Errorf("exit code %d, want 77", exit)
	}
	wantGone(t, group)
}

// TestAcquireWithoutAReader: a lock whose token nobody can read is released.
func TestAcquireWithoutAReader(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	r, w := pipe(t)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	acquire := exec.Command(binary, "acquire", "k", "--ttl", "1h")
	acquire.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket)
	acquire.Stdout = w
	if err := acquire.Start(); err != nil {
		t.Fatal(err)
	}
	if exit := exitOf(t, acquire); exit != 1 {
		t.Errorf("exit code %d, want 1", exit)
	}
	wantFree(t, s, "k")
}
