package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// typist is a pseudo terminal with a process.
type typist struct {
	*running
	keyboard *os.File
}

// onTerminal runs a shell script with job control on a terminal, like lines that a user types.
func onTerminal(t *testing.T, s *sidecar, script string) *typist {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	fd := int(keyboard.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &typist{&running{t: t, stdout: &logBuffer{}, stderr: &logBuffer{}, ended: make(chan struct{})}, keyboard}
	term.cmd = exec.Command("bash", "-c", "set -m\n"+script)
	term.cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket, "RUN="+binary+" run", "TOP="+binary+" top", "TERM=xterm", "LISTENER="+os.Args[0], listenerEnv+"=1")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = screen, screen, screen
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = screen.Close()
	go func() { // copies the screen until the terminal ends
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			_, _ = term.stdout.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = term.cmd.Wait()
		close(term.ended)
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill() // the terminal's session gets SIGHUP
		<-term.ended
		if t.Failed() {
			t.Logf("on the screen:\n%s", term.stdout)
		}
	})
	return term
}

// keys types text.
func (term *typist) keys(text string) {
	term.t.Helper()
	if _, err := term.keyboard.WriteString(text); err != nil {
		term.t.Fatal(err)
	}
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// TestRunOnATerminal: CMD reads what is typed, also in a pipeline. Ctrl-C goes to CMD.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	term := onTerminal(t, s, `
$RUN k -- bash -c 'read -p "name? " x; echo hello $x' | cat
$RUN k -- bash -c 'trap "echo caught; exit 5" INT; read -p "second? " x'
echo code $?
$RUN k -- sh -c 'echo third; exec sleep 60'
echo code $?
set +m # a script: nobody but run takes the terminal back
$RUN k -- bash -c 'read z; echo last $z'
read -p "again? " y; echo back $y`)
	term.keys("world\n")
	term.says("hello world")
	eventually(t, "the second command to read", func() bool { return term.belongsTo("trap ") })
	term.says("second? ") // a signal just before its read would wait for a key
	term.keys(ctrlC)
	term.says("caught")
	term.says("code 5")
	term.says("third")
	term.keys(ctrlC)
	term.says("code 130")
	eventually(t, "the last command to read", func() bool { return term.belongsTo("read z") })
	term.keys("one\n")
	term.says("last one")
	term.says("again? ")
	term.keys("me\n")
	term.says("back me")
	term.want(0)
}

// Ctrl-Z does not stop CMD, because a stopped command should not hold a lock.
func TestRunCtrlZ(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	term := onTerminal(t, s, `
$RUN k -- bash -c 'echo here; read x; echo got $x; read y; echo got $y'
echo code $?`)
	term.says("here")
	eventually(t, "the command to read", func() bool { return term.belongsTo("echo here") })
	term.keys(ctrlZ)
	term.keys("this\n")
	term.says("got this")
	term.keys("that\n")
	term.says("got that")
	term.says("code 0")
	term.want(0)
}

// A `run` that waits is not stopped either: it would be granted the lock, and keep it.
func TestRunCtrlZWhileItWaits(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	holder := dial(t, s.socket)
	token := holder.acquire("k", "")
	term := onTerminal(t, s, `
$RUN k --wait -- echo started
echo code $?`)
	s.awaitQueue("k", 1)
	term.keys(ctrlZ)
	term.says("^Z")
	holder.release("k", token)
	term.says("started")
	term.says("code 0")
	term.want(0)
}

// CMD in the background wants the terminal, and gets it when the shell brings the job to the foreground.
func TestRunInTheBackground(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	term := onTerminal(t, s, `
$RUN k -- bash -c 'echo group $$; read x; echo got $x' &
read -p "ready? " y
fg
echo code $?`)
	term.says("ready? ")
	var group int
	eventually(t, "the command to be stopped", func() bool {
		_, text, _ := strings.Cut(term.stdout.String(), "group ")
		n, _ := fmt.Sscanf(text, "%d\r\n", &group)
		return n == 1 && processState(group) == "T"
	})
	term.keys("yes\n")
	eventually(t, "the command to have the terminal", func() bool { return term.belongsTo("echo group") })
	term.keys("this\n")
	term.says("got this")
	term.says("code 0")
	term.want(0)
}

// belongsTo reports whether the terminal's foreground process is a bash whose script has this
// prefix. A script gets the terminal when it first reads.
func (term *typist) belongsTo(script string) bool {
	id, err := unix.IoctlGetInt(int(term.keyboard.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return false
	}
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
	return strings.HasPrefix(string(line), "bash\x00-c\x00"+script) && processState(id) != "T"
}
