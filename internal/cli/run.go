package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const runLong = `Acquire a lock, run CMD while it is held, release it, and exit with CMD's code.

The lock belongs to this process: when the process ends for any reason, even kill -9,
the lock is free at once. CMD has this process's standard input, output and error. Its
environment has LOCKSIDECAR_KEY and LOCKSIDECAR_TOKEN, the fencing token. Pass the token to
the protected resource, which should refuse smaller ones.

With --shared, several shared holders may have the lock at a time, with --limit=5 at most
five. With a limit, LOCKSIDECAR_SLOT is a number (here from 0 to 4) that no other present
holder has.

Without --wait, the command tries once. With --wait=30s it waits up to 30 s in the queue, and
with --wait alone for ever. If the sidecar restarts meanwhile, it waits on, for at most a
minute without a sidecar. Ctrl-C or SIGTERM ends the wait. Under another "run" that holds
the same lock, it does not wait, because the two would wait for each other.

Signals. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH are passed on
to CMD's process group, which CMD has for itself. CMD gets the terminal when it needs it.
Ctrl-Z has no effect, because a stopped command should not hold a lock. A CMD in the background
that wants the terminal is stopped until "fg", and holds the lock meanwhile.

If the lock is lost (because it was broken, or the sidecar has died or does not answer for a
TTL), CMD's whole process group gets SIGTERM, and SIGKILL if it has not ended after --grace
(5s by default). The exit code is then 77, regardless of CMD's.

If the holder is asked to stop ("locksidecar stop KEY"), this command writes a line to
standard error. With --on-stop, CMD's process group also gets the named signal.

With --again, the command acquires the lock and starts CMD again if the lock was lost, or if
CMD has ended after the signal of --on-stop, but not if this process itself was asked to
end. While the sidecar does not answer, it tries every second. Together with --wait alone,
this makes a candidate in a leader election.

The release has outcome=success if CMD exits with 0, and otherwise outcome=failure (shared
locks have no outcome). Background processes of CMD continue, and the command does not wait
for them, except after a loss of the lock. If this process is killed with kill -9, Linux
kills CMD too, but not CMD's children, and not a CMD that changes its user (sudo).`

const runExample = `  # Only one pod makes the backup; the others continue at once
  locksidecar run backup:nightly -- pg_dump -f /backup/app.sql app

  # One after the other; give up after ten minutes
  locksidecar run deploy:prod --wait=10m --data '{"by":"ci-4711"}' -- ./deploy.sh

  # One leader of all pods: it ends when the lock is lost or it is asked to stop, and
  # then waits again
  locksidecar run leader:billing --wait --again --on-stop TERM -- ./billing

  # At most three at a time, each with a different number
  locksidecar run import:s3 --limit 3 --wait -- sh -c './import --part "$LOCKSIDECAR_SLOT"'

  # Pass the fencing token to the protected resource
  locksidecar run report:daily -- sh -c 'psql -v token="$LOCKSIDECAR_TOKEN" -f report.sql'

  # Ignore it if another caller has the lock
  locksidecar run cron:clean -- ./clean.sh || [ $? -eq 75 ]`

// The exit codes of `run` in addition to the common ones, as in env(1), timeout(1) and the shells.
const (
	exitCannotRun  = 126
	exitNoCommand  = 127
	exitSignalBase = 128
)

const runExitCodesHelp = `Exit codes: CMD's own, 128+n when signal n ended it, and
  2    the command line, or a value in it, is wrong
  69   no sidecar listens, or it or its store is not available now
  75   the lock is held by others, or was not granted within --wait
  77   the lock was lost while CMD ran, or you may not use the socket
  126  CMD cannot be executed
  127  CMD was not found
  128+n  signal n ended this program before CMD was started`

// defaultGrace is how long CMD may take to end after a loss. It is short, because another session may have the
// lock.
const defaultGrace = 5 * time.Second

type runOptions struct {
	key     string
	command []string
	path    string        // of the executable
	ttl     time.Duration // 0: the sidecar's
	acquire acquireBody
	onStop  syscall.Signal // 0: none
	again   bool
	grace   time.Duration
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:     "run KEY [--wait[=30s]] [--ttl DURATION] [--data JSON] [--on-stop SIGNAL] -- CMD [ARG...]",
		Short:   "Run a command while holding a lock",
		Long:    runLong + "\n\n" + runExitCodesHelp,
		Example: runExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return usagef("give one KEY, then -- and the command; for instance: %s", runUsage(args, dash))
			}
			return nil
		},
		// Flags after the first -- belong to CMD.
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.key, o.command = args[0], args[1:]
			if o.grace < 0 {
				return usagef("--grace is %s; allowed: 0 or more", o.grace)
			}
			var err error // before the wait, so that a typing mistake is reported at once
			if o.path, err = exec.LookPath(o.command[0]); err != nil {
				return cannotRun(o.command[0], err)
			}
			r := runner{options: o, client: a.newClient(), stderr: cmd.ErrOrStderr()}
			if err := refuseOwnLock(r.client, o.key, o.acquire); err != nil {
				return err
			}
			return r.run()
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := ""
		if strings.HasPrefix(err.Error(), "unknown") {
			hint = "; if it is a flag of CMD, put -- before CMD: locksidecar run KEY -- CMD"
		}
		return usagef("%w%s; see `%s --help`", plain(err), hint, cmd.CommandPath())
	})
	o.acquire.addFlags(cmd)
	f := cmd.Flags()
	f.Func("ttl", "the `duration` for which the lock outlives a dead sidecar, from 500ms to 24h (default: the sidecar's)", func(text string) error {
		var n int64
		err := setTTL(&n, text)
		o.ttl = time.Duration(n) * time.Millisecond
		return err
	})
	f.Func("on-stop", "the `signal` that CMD gets when the holder is asked to stop, such as TERM (default: none)", func(text string) (err error) {
		o.onStop, err = parseSignal(text)
		return err
	})
	f.DurationVar(&o.grace, "grace", defaultGrace, "time from SIGTERM to SIGKILL for CMD when the lock is lost")
	f.BoolVar(&o.again, "again", false, "after a loss, or a stop by --on-stop, acquire the lock and start CMD again")
	return cmd
}

// runUsage is the command line that was probably meant: with -- between the key and the command.
func runUsage(args []string, dash int) string {
	if dash >= 0 || len(args) < 2 {
		return "locksidecar run KEY -- CMD"
	}
	return client.Printable(fmt.Sprintf("locksidecar run %s -- %s", args[0], strings.Join(args[1:], " ")))
}

func cannotRun(name string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitcode.With(exitNoCommand, fmt.Errorf("command not found: %s", name))
	}
	return exitcode.With(exitCannotRun, fmt.Errorf("%s cannot be executed: %w", name, err))
}

// notStarted is the error of a command that was found, but not started.
func notStarted(path string, err error) error {
	if interpreter, is := interpreterOf(path); is && errors.Is(err, fs.ErrNotExist) {
		return exitcode.With(exitCannotRun, fmt.Errorf("%s cannot be executed: its first line names the interpreter %q, which does not exist%s",
			path, interpreter, hintOfCR(interpreter)))
	}
	return cannotRun(path, err)
}

// interpreterOf reads the interpreter from the first line of a script.
func interpreterOf(path string) (interpreter string, is bool) {
	f, err := os.Open(path) //nolint:gosec // the user names the command, and this process may run it
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }()
	const most = 256 // Linux reads no more of the line
	head := make([]byte, most)
	n, _ := io.ReadFull(f, head)
	line, is := strings.CutPrefix(string(head[:n]), "#!")
	if !is {
		return "", false
	}
	line, _, _ = strings.Cut(line, "\n")
	interpreter, _, _ = strings.Cut(strings.TrimLeft(line, " \t"), " ")
	return interpreter, true
}

func hintOfCR(interpreter string) string {
	if strings.HasSuffix(interpreter, "\r") {
		return "; the file has the line ends of Windows (CRLF), and needs those of Unix (LF)"
	}
	return ""
}

type runner struct {
	options runOptions
	client  *client.Client
	stderr  interface{ Write(p []byte) (int, error) }
	writing sync.Mutex // for a line to stderr
}

// againPause is the pause between the tries of --again while the sidecar does not answer.
const againPause = time.Second

// run runs CMD once, or with --again repeatedly until CMD ends without a loss or stop.
func (r *runner) run() error {
	signals := make(chan os.Signal, 64)
	notifyHeeded(signals, passedOn...)
	// Without a reader of standard error, only lines are lost. Ctrl-Z stops neither the wait, which would then be granted the
	// lock, nor the watch over CMD. These signals are caught, not ignored, because CMD would inherit that.
	notifyHeeded(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGTSTP)
	ofTerm := heeded([]os.Signal{syscall.SIGTTOU})
	for {
		again, err := r.term(signals)
		if _, ofCMD := errors.AsType[exitcode.StatusError](err); r.options.again && !ofCMD && exitcode.Of(err) == exitcode.Unavailable {
			r.logf("%v; trying again", err)
			again, err = r.pause(signals)
		}
		if !again {
			return err
		}
		for _, sig := range ofTerm {
			// run ignores them later, and the next CMD must not inherit that. A caught signal has its default action
			// in CMD.
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// pause waits, and reports whether to continue: not if a signal has ended the wait.
func (r *runner) pause(signals <-chan os.Signal) (goOn bool, err error) {
	over := time.After(againPause)
	for {
		select {
		case <-over:
			return true, nil
		case sig := <-signals:
			if endsWait(sig) {
				return false, r.endedBy(sig)
			}
		}
	}
}

// term acquires the lock, runs CMD, and releases. If it fails in between, the session ends with the process.
// again reports whether to acquire again.
func (r *runner) term(signals chan os.Signal) (again bool, err error) {
	l, err := r.await(signals)
	if err != nil {
		return false, err
	}
	defer l.close()
	g, err := startGroup(r.options.path, r.options.command, childEnv(os.Environ(), r.client.Socket, l))
	if err != nil {
		r.release(l, false)
		return false, notStarted(r.options.path, err)
	}
	sup := supervisor{runner: r, lock: l, group: g, terminal: openTerminal()}
	code := sup.supervise(signals)
	lost := sup.lost || !r.release(l, code == 0)
	again = r.options.again && (lost || sup.stopSent) && !sup.told
	switch {
	case lost:
		return again, exitcode.StatusError(exitcode.Refused)
	case code == 0:
		return again, nil
	}
	return again, exitcode.StatusError(code)
}

// await waits for the lock or a signal, even if the sidecar does not answer.
func (r *runner) await(signals <-chan os.Signal) (*holder, error) {
	type result struct {
		lock *holder
		err  error
	}
	done := make(chan result, 1)
	go func() {
		l, err := r.acquire()
		done <- result{l, err}
	}()
	for {
		select {
		case got := <-done:
			return got.lock, got.err
		case sig := <-signals:
			if endsWait(sig) {
				return nil, r.endedBy(sig)
			}
		}
	}
}

// endedBy is the error of a wait that a signal has ended.
func (r *runner) endedBy(sig os.Signal) error {
	n := sig.(syscall.Signal)
	return exitcode.With(exitSignalBase+int(n), fmt.Errorf("%s, before the lock %s was acquired", n, client.Printable(r.options.key)))
}

func endsWait(sig os.Signal) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// release reports whether the lock was held until now. It ignores other failures, because the end of the
// session releases the lock, too.
func (r *runner) release(l *holder, success bool) bool {
	err := l.release(success)
	if err == nil {
		return true
	}
	if reason, lost := lossOf(err); lost {
		r.logf("the lock %s was lost before CMD ended: %s", l.Key(), reason)
		return false
	}
	r.logf("releasing %s: %v; it is free when this process has ended", l.Key(), r.client.Explain(err))
	return true
}

// logPatience limits how long a line waits for its reader. After Ctrl-S, a terminal reads nothing.
const logPatience = 100 * time.Millisecond

// logf writes a line between those of CMD. Some lines contain foreign texts, so it escapes them. While an earlier line waits for
// its reader, further lines are dropped, because CMD must not outlive the lock.
func (r *runner) logf(format string, args ...any) {
	if !r.writing.TryLock() {
		return
	}
	written := make(chan struct{})
	go func() {
		fmt.Fprintf(r.stderr, "locksidecar: %s\n", client.Printable(fmt.Sprintf(format, args...)))
		r.writing.Unlock()
		close(written)
	}()
	select {
	case <-written:
	case <-time.After(logPatience):
	}
}

// sessionName is what others see as the holder's session, for instance pg_dump[4711].
func sessionName(path string) string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return '?'
		}
		return c
	}, filepath.Base(path))
	const most = 60 // characters; 255 bytes are allowed
	if runes := []rune(name); len(runes) > most {
		name = string(runes[:most])
	}
	return fmt.Sprintf("%s[%d]", name, os.Getpid())
}

var grantVariables = []string{"LOCKSIDECAR_KEY", "LOCKSIDECAR_TOKEN", "LOCKSIDECAR_SLOT", heldVariable}

// grant is what CMD is told of its lock.
type grant interface {
	Key() string
	Token() int64
	Slot() int
	Session() string
	Mode() locksidecar.Mode
}

// childEnv is the environment of CMD. It replaces the variables of an outer `run`, but for the list of what is held.
func childEnv(environ []string, socket string, l grant) []string {
	env := make([]string, 0, len(environ)+4)
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(grantVariables, name) {
			env = append(env, v)
		}
	}
	env = append(env, "LOCKSIDECAR_KEY="+l.Key(), fmt.Sprintf("LOCKSIDECAR_TOKEN=%d", l.Token()))
	if slot := l.Slot(); slot >= 0 {
		env = append(env, fmt.Sprintf("LOCKSIDECAR_SLOT=%d", slot))
	}
	own := outerLock{Socket: socket, Key: l.Key(), Session: l.Session(), Shared: l.Mode() == locksidecar.ModeShared}
	return append(env, heldVariable+"="+withOwnLock(environ, own))
}
