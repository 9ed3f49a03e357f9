package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// running is a command in progress.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *logBuffer
	ended          chan struct{}
}

// startRun starts `locksidecar run` with these arguments. Its standard input stays open until the
// test closes it.
func startRun(t *testing.T, s *sidecar, args ...string) *running {
	t.Helper()
	return startCommand(t, s, append([]string{"run"}, args...)...)
}

// startCommand starts a command of the built binary, as startRun does.
func startCommand(t *testing.T, s *sidecar, args ...string) *running {
	t.Helper()
	r := &running{t: t, stdout: &logBuffer{}, stderr: &logBuffer{}, ended: make(chan struct{})}
	r.cmd = exec.Command(binary, args...)
	r.cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket, listenerEnv+"=1")
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	r.cmd.WaitDelay = patience // a process that is left behind may keep the output open
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.stdin = stdin
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // this ends the command, too
		_ = stdin.Close()
		<-r.ended
		if t.Failed() {
			t.Logf("%q\nstdout: %s\nstderr: %s", r.cmd.Args, r.stdout, r.stderr)
		}
	})
	return r
}

// wait returns the exit code.
func (r *running) wait() int {
	r.t.Helper()
	select {
	case <-r.ended:
		return code(r.cmd.ProcessState)
	case <-time.After(patience):
		r.t.Fatalf("%q did not end in %s; stderr: %s", r.cmd.Args, patience, r.stderr)
		return -1
	}
}

// code returns the exit code like a shell's $?.
func code(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return 1000 + int(status.Signal()) // a signal ended the process itself, without an exit code
	}
	return state.ExitCode()
}

func (r *running) want(exit int) {
	r.t.Helper()
	if got := r.wait(); got != exit {
		r.t.Fatalf("%q: exit code %d, want %d; stderr: %s", r.cmd.Args, got, exit, r.stderr)
	}
}

// says waits until standard output or standard error has the text.
func (r *running) says(text string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%q", text), func() bool {
		return strings.Contains(r.stdout.String()+r.stderr.String(), text)
	})
}

func (r *running) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// group reads the process group from the line "group N" of the command.
func (r *running) group() int {
	r.t.Helper()
	r.says("\n")
	var id int
	if _, err := fmt.Sscanf(r.stdout.String(), "group %d\n", &id); err != nil || id < 2 {
		r.t.Fatalf("no process group in %q", r.stdout)
	}
	r.t.Cleanup(func() { _ = syscall.Kill(-id, syscall.SIGKILL) }) // also after a failure
	return id
}

// members returns the living processes of a group.
func members(t *testing.T, group int) []string {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(stats) == 0 {
		t.Fatal("no /proc to search for processes")
	}
	var alive []string
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended meanwhile
		}
		_, rest, _ := bytes.Cut(stat, []byte(") ")) // skips the name, which may contain anything
		fields := strings.Fields(string(rest))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			alive = append(alive, strings.TrimSpace(string(stat[:bytes.IndexByte(stat, ')')+1])))
		}
	}
	return alive
}

// wantGone checks that the group has no process left.
func wantGone(t *testing.T, group int) {
	t.Helper()
	if left := members(t, group); len(left) > 0 {
		t.Errorf("still running: %q", left)
	}
}

// wantFree checks that the lock is available now.
func wantFree(t *testing.T, s *sidecar, key string) {
	t.Helper()
	a := dial(t, s.socket)
	a.release(key, a.acquire(key, "", "Cache-Control: no-cache"))
}

// listenerEnv makes a process of this test binary a command that prints the signals that it gets.
// TERM ends it, with exit code 7.
const listenerEnv = "LOCKSIDECAR_E2E_LISTENER"

func runListener() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT)
	fmt.Println("listening")
	for sig := range signals {
		fmt.Println("heard", unix.SignalName(sig.(syscall.Signal)))
		if sig == syscall.SIGTERM {
			os.Exit(7)
		}
	}
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	holder := dial(t, s.socket)
	holder.acquire("taken", "")
	plain := filepath.Join(folder(t), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	windows := filepath.Join(folder(t), "windows")
	if err := os.WriteFile(windows, []byte("#!/bin/sh\r\necho started\r\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want int
		says string
		args []string
	}{
		{0, "", []string{"k", "--", "true"}},
		{3, "", []string{"k", "--", "sh", "-c", "exit 3"}},
		{128 + 9, "", []string{"k", "--ttl", "1m", "--", "sh", "-c", "kill -KILL $$"}},
		{128 + 15, "", []string{"k", "--wait", "1m", "--", "sh", "-c", "kill $$"}},
		{75, "held by pod", []string{"taken", "--", "echo", "started"}},
		{75, "queue position: 1", []string{"taken", "--wait=10ms", "--", "echo", "started"}},
		{75, "queue position: 1", []string{"taken", "--wait", "10ms", "--", "echo", "started"}},
		{127, "command not found: no-such-command", []string{"k", "--", "no-such-command"}},
		{126, "cannot be executed", []string{"k", "--", "/"}},
		{126, "exec format error", []string{"k", "--", plain}},
		{126, `the interpreter "/bin/sh\r", which does not exist; the file has the line ends of Windows`, []string{"k", "--", windows}},
		{2, "500", []string{"k", "--ttl", "1ms", "--", "echo", "started"}},
		{2, "key has 0 bytes; it must have 1 to 512", []string{"", "--", "echo", "started"}},
		{69, "locksidecar serve", []string{"k", "--socket", "/no/such/socket", "--", "echo", "started"}},
	} {
		r := startRun(t, s, test.args...)
		r.want(test.want)
		if !strings.Contains(r.stderr.String(), test.says) || (test.says == "" && r.stderr.String() != "") {
			t.Errorf("%q: %q, want %q", test.args, r.stderr, test.says)
		}
		if r.stdout.String() != "" {
			t.Errorf("%q: the command was started", test.args)
		}
		wantFree(t, s, "k")
	}
}

// TestRunOutcome: skip-waiters get the outcome of the command.
func TestRunOutcome(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	watch, _ := watchKey(t, s.socket, "k")
	for command, want := range map[string]string{"true": "success", "false": "failure"} {
		startRun(t, s, "k", "--", command).wait()
		watch.want("acquired")
		if got := watch.want("released").data["outcome"]; got != want {
			t.Errorf("%s: outcome %v, want %s", command, got, want)
		}
	}
	shared := startRun(t, s, "k", "--shared", "--", "false")
	shared.wait()
	watch.want("acquired")
	if got := watch.want("released").data["outcome"]; got != nil || shared.stderr.String() != "" {
		t.Errorf("shared: outcome %v, %s", got, shared.stderr)
	}
}

// TestRunHandsOver: CMD has the same environment, input and output as without `run`, plus the token
// and the key, but nothing of the session.
func TestRunHandsOver(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	a := dial(t, s.socket)
	before := a.acquire("dir/k", "")
	a.release("dir/k", before)

	r := startRun(t, s, "dir/k", "--data", `{"by":"test"}`, "--", "sh", "-c", `echo "$LOCKSIDECAR_KEY $LOCKSIDECAR_TOKEN"; cat; echo problem >&2`)
	r.says("dir/k ")
	view := a.call("GET", lockPath("dir/k"), "")
	holder, _ := view.json["holder"].(map[string]any)
	if want := fmt.Sprintf("sh[%d]", r.cmd.Process.Pid); holder["session"] != want || fmt.Sprint(holder["data"]) != "map[by:test]" {
		t.Errorf("the holder %s with its data is not shown: %s", want, view.body)
	}
	text := strings.Repeat("all of the input\n", 100_000)
	if _, err := io.WriteString(r.stdin, text); err != nil {
		t.Fatal(err)
	}
	_ = r.stdin.Close()
	r.want(0)
	head, rest, _ := strings.Cut(r.stdout.String(), "\n")
	token, err := strconv.ParseInt(strings.TrimPrefix(head, "dir/k "), 10, 64)
	if err != nil || token <= before {
		t.Errorf("the command's environment: %q; the token must be more than %d", head, before)
	}
	if rest != text || r.stderr.String() != "problem\n" {
		t.Errorf("%d bytes of %d arrived; stderr: %s", len(rest), len(text), r.stderr)
	}

	// In a nested `run`, the inner lock's variables replace the outer ones.
	r = startRun(t, s, "outer", "--", binary, "run", "inner", "--", "sh", "-c", "env | grep ^LOCKSIDECAR_KEY")
	r.want(0)
	if r.stdout.String() != "LOCKSIDECAR_KEY=inner\n" {
		t.Errorf("environment: %q", r.stdout)
	}
}

// TestRunLeavesNoTrace: CMD does not inherit a descriptor of the session, which would keep the lock
// alive. CMD does not inherit further blocked or ignored signals.
func TestRunLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	const look = `grep -E "^Sig(Blk|Ign)" /proc/self/status; ls -l /proc/$$/fd | grep -c socket:`
	alone, _ := exec.Command("sh", "-c", look).Output()
	r := startRun(t, s, "k", "--", "sh", "-c", look)
	r.wait()
	if len(alone) == 0 || r.stdout.String() != string(alone) {
		t.Errorf("with run:\n%swithout:\n%s", r.stdout, alone)
	}
	// Signals that nohup or & ignore stay ignored.
	outer := exec.Command("sh", "-c", `trap "" INT HUP; exec "$@"`, "sh", binary, "--socket", s.socket, "run", "k", "--",
		"sh", "-c", "kill -HUP $$; kill -INT $$; echo alive")
	outer.Env = cleanEnv()
	if out, err := outer.CombinedOutput(); err != nil || string(out) != "alive\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	// There are two listeners, because the signals are for the whole group.
	r := startRun(t, s, "k", "--", "sh", "-c", `echo group $$; "$0" & exec "$0"`, os.Args[0])
	group := r.group()
	eventually(t, "both listeners to be ready", func() bool { return strings.Count(r.stdout.String(), "listening") == 2 })
	for _, sig := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGTERM,
	} {
		r.signal(sig)
		eventually(t, "both to receive "+unix.SignalName(sig), func() bool {
			return strings.Count(r.stdout.String(), "heard "+unix.SignalName(sig)+"\n") == 2
		})
	}
	r.want(7)
	wantFree(t, s, "k")
	eventually(t, "the end of all processes", func() bool { return len(members(t, group)) == 0 })
}

// processState returns the state of a process, such as T for stopped; see proc(5).
func processState(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	state, _, _ := strings.Cut(string(rest), " ")
	return state
}

// stubborn is a command whose group ignores SIGTERM, but whose leader does not.
const stubborn = `echo group $$; sh -c 'trap "" TERM; echo deaf; while :; do sleep 60; done' & exec sleep 60`

func TestRunEndsTheGroupOnLoss(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	losses := []struct {
		name        string
		lose        func(t *testing.T, s *sidecar)
		says        string
		ttl, within time.Duration
	}{
		{"forced", func(t *testing.T, s *sidecar) {
			dial(t, s.socket).call("DELETE", lockPath("k")+"?force=true", "").want(200, "")
		}, "lost (forced)", time.Hour, 0},
		{"the sidecar is killed", func(_ *testing.T, s *sidecar) { s.kill() }, "the connection to the sidecar has ended", time.Hour, 0},
		{"the sidecar hangs", func(_ *testing.T, s *sidecar) { s.signal(syscall.SIGSTOP) }, "the sidecar does not answer", ttl, ttl},
	}
	for _, loss := range losses {
		t.Run(loss.name, func(t *testing.T) {
			s := start(t, options{"ALLOW_FORCE": "true", "TTL": loss.ttl.String()})
			// This command ends after SIGTERM, within its grace. When the signal can no longer end
			// it, it prints its group. It ends its own child.
			polite := startRun(t, s, "k", "--grace", "1h", "--", "sh", "-c", `sleep 60 & trap 'echo tidy; exit 0' TERM; echo group $$; wait; echo late`)
			group := polite.group()
			began := time.Now()
			loss.lose(t, s)
			polite.want(77)
			took := time.Since(began)
			if out := polite.stdout.String(); !strings.HasSuffix(out, "tidy\n") {
				t.Errorf("stdout: %s", out)
			}
			if !strings.Contains(polite.stderr.String(), loss.says) {
				t.Errorf("stderr: %s; want %q", polite.stderr, loss.says)
			}
			if limit := loss.within + slowed(200*time.Millisecond); took > limit {
				t.Errorf("it took %s, want at most %s", took, limit)
			}
			wantGone(t, group)
		})
	}
	t.Run("processes that ignore SIGTERM are killed", func(t *testing.T) {
		const grace = 300 * time.Millisecond
		s := start(t, options{"ALLOW_FORCE": "true"})
		r := startRun(t, s, "k", "--grace", grace.String(), "--", "sh", "-c", stubborn)
		group := r.group()
		r.says("deaf")
		began := time.Now()
		losses[0].lose(t, s)
		r.want(77)
		if took := time.Since(began); took < grace || took > grace+slowed(200*time.Millisecond) {
			t.Errorf("it took %s; the grace is %s", took, grace)
		}
		wantGone(t, group)
	})
	t.Run("a stopped process ends, too", func(t *testing.T) {
		s := start(t, options{"ALLOW_FORCE": "true"})
		r := startRun(t, s, "k", "--grace", "1h", "--", "sh", "-c", `echo group $$; kill -STOP $$`)
		group := r.group()
		eventually(t, "the command to be stopped", func() bool { return processState(group) == "T" })
		losses[0].lose(t, s)
		r.want(77)
		wantGone(t, group)
	})
}

// TestRunHoldsOn: a lock that is not lost is held for longer than two TTLs.
func TestRunHoldsOn(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		t.Parallel()
		s := start(t, o.with(options{"TTL": "1h", "RENEW_INTERVAL": "500ms"}))
		r := startRun(t, s, "k", "--ttl", "4s", "--", "sh", "-c", `echo group $$; sleep 9`)
		r.group()
		dial(t, s.socket).call("GET", lockPath("k"), "").want(200, "")
		r.want(0)
		if r.stderr.String() != "" {
			t.Errorf("stderr: %s", r.stderr)
		}
		wantFree(t, s, "k")
	})
}

// TestRunKilled: kill -9 of `run` frees the lock at once, and CMD ends.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	s := start(t, options{"TTL": "1h"})
	r := startRun(t, s, "k", "--", "sh", "-c", `echo group $$; exec sleep 60`)
	group := r.group()
	a := dial(t, s.socket)
	a.send("PUT", lockPath("k"), `{"wait_ms":-1}`)
	s.awaitQueue("k", 1)
	began := time.Now()
	r.signal(syscall.SIGKILL)
	a.read("PUT", lockPath("k")).granted()
	if took, limit := time.Since(began), slowed(dropLimit); took > limit {
		t.Errorf("the lock was free after %s, want within %s", took, limit)
	}
	eventually(t, "the end of the command", func() bool { return len(members(t, group)) == 0 })
}

// TestRunWaiting: a signal ends a waiting `run`, which then leaves the queue.
func TestRunWaiting(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	holder := dial(t, s.socket)
	token := holder.acquire("k", "")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		r := startRun(t, s, "k", "--wait", "--", "echo", "started")
		s.awaitQueue("k", 1)
		r.signal(syscall.SIGUSR1) // a signal for CMD, which has not started
		r.signal(syscall.SIGWINCH)
		r.signal(sig)
		r.want(128 + int(sig))
		if r.stdout.String() != "" || !strings.Contains(r.stderr.String(), "before the lock k was acquired") {
			t.Errorf("stdout: %q, stderr: %q", r.stdout, r.stderr)
		}
		s.awaitQueue("k", 0)
	}
	r := startRun(t, s, "k", "--wait", "--", "echo", "started")
	s.awaitQueue("k", 1)
	holder.release("k", token)
	r.want(0)
	if r.stdout.String() != "started\n" {
		t.Errorf("stdout: %q", r.stdout)
	}
	// The sidecar ends while `run` waits.
	holder.acquire("k", "")
	r = startRun(t, s, "k", "--wait", "5s", "--", "echo", "started")
	s.awaitQueue("k", 1)
	s.kill()
	r.want(69)
	if r.stdout.String() != "" {
		t.Error("the command was started without the lock")
	}
}

// TestRunWaitsThroughARestart: the sidecar ends while `run` waits, by a stop or a crash, and comes back.
func TestRunWaitsThroughARestart(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *sidecar){"stopped": func(s *sidecar) { s.stop() }, "killed": (*sidecar).kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			s := startIn(t, dir, options{"DRAIN_TIMEOUT": "0"})
			dial(t, s.socket).acquire("k", "")
			r := startRun(t, s, "k", "--wait", "--", "sh", "-c", "echo started; read x")
			s.awaitQueue("k", 1)
			end(s)
			r.says("waiting on")
			startIn(t, dir, nil)
			r.says("started")
			_ = r.stdin.Close()
			r.wait()
		})
	}
}

// TestRunUnderItself: a `run` does not wait for a lock that an outer `run` holds, at any depth. Without a wait, and for permits
// of a semaphore, there is nothing to refuse. A process that has outlived the outer `run` may wait.
func TestRunUnderItself(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, test := range []struct {
		want int
		says string
		args []string
	}{
		{75, "this command runs under `locksidecar run k`", []string{"k", "--", binary, "run", "k", "--wait", "--", "true"}},
		{75, "this command runs under `locksidecar run k`", []string{"k", "--", binary, "run", "l", "--", binary, "run", "k", "--wait", "1h", "--", "true"}},
		{75, "this command runs under `locksidecar run k`", []string{"k", "--", binary, "acquire", "k", "--ttl", "1m", "--wait"}},
		{75, "this command runs under `locksidecar run k`", []string{"k", "--shared", "--", binary, "run", "k", "--wait", "--", "true"}},
		{75, "held by pod", []string{"k", "--", binary, "run", "k", "--", "true"}},
		{0, "", []string{"k", "--limit", "2", "--", binary, "run", "k", "--limit", "2", "--wait", "--", "true"}},
		{0, "", []string{"k", "--", binary, "run", "l", "--wait", "--", "true"}},
	} {
		r := startRun(t, s, test.args...)
		r.want(test.want)
		if !strings.Contains(r.stderr.String(), test.says) {
			t.Errorf("%q: %s", test.args, r.stderr)
		}
	}
	outlives := startRun(t, s, "k", "--", "sh", "-c", `(read go; exec "$0" run k --wait -- echo after) <&0 &`, binary)
	outlives.want(0)
	_, _ = io.WriteString(outlives.stdin, "go\n")
	outlives.says("after")
}

// TestRunEndsAStoppedCommand: a signal that asks CMD to end reaches it although it is stopped.
func TestRunEndsAStoppedCommand(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	a := dial(t, s.socket)
	for name, ask := range map[string]func(r *running){
		"TERM":    func(r *running) { r.signal(syscall.SIGTERM) },
		"on-stop": func(*running) { a.call("POST", stopPath("k"), "").want(202, "") },
	} {
		r := startRun(t, s, "k", "--on-stop", "TERM", "--", "sh", "-c", `echo group $$; kill -STOP $$`)
		group := r.group()
		eventually(t, "the command to be stopped", func() bool { return processState(group) == "T" })
		ask(r)
		if r.want(128 + int(syscall.SIGTERM)); t.Failed() {
			t.Fatal(name)
		}
		wantFree(t, s, "k")
	}
}

// TestRunEndsAtASidecarThatHangs: a signal ends `run` even before it has a session.
func TestRunEndsAtASidecarThatHangs(t *testing.T) {
	t.Parallel()
	s := &sidecar{socket: filepath.Join(folder(t), "s.sock")}
	hangs, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hangs.Close() }()
	r := startRun(t, s, "k", "--", "echo", "started")
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	begin := time.Now()
	r.signal(syscall.SIGINT)
	r.want(128 + int(syscall.SIGINT))
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestRunOnStop(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	a := dial(t, s.socket)
	r := startRun(t, s, "k", "--", os.Args[0])
	r.says("listening")
	a.call("POST", stopPath("k"), `{"reason":"a deploy"}`).want(202, "")
	r.says("the holder of k is asked to stop: a deploy\n")
	r.signal(syscall.SIGTERM)
	r.want(7)
	if out := r.stdout.String(); out != "listening\nheard SIGTERM\n" {
		t.Errorf("without --on-stop the command printed %s", out)
	}

	for _, name := range []string{"USR2", "SIGUSR2", "usr2", strconv.Itoa(int(syscall.SIGUSR2))} {
		r = startRun(t, s, "k", "--on-stop", name, "--", os.Args[0])
		r.says("listening")
		a.call("POST", stopPath("k"), "").want(202, "")
		r.says("heard SIGUSR2")
		r.signal(syscall.SIGTERM)
		r.want(7)
	}
}
