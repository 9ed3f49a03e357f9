package cli

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// typist is a process on a pseudo terminal, and who sits before it.
type typist struct {
	t                *testing.T
	cmd              *exec.Cmd
	keyboard, screen *os.File
	shown            *logtest.Log
	before           unix.Termios
	ended            chan struct{}
}

// onTerminal runs this program on a terminal of 80 by 24.
func onTerminal(t *testing.T, child string, args ...string) *typist {
	t.Helper()
	return onTerminalAs(t, "xterm", child, append([]string{os.Args[0]}, args...)...)
}

// onTerminalAs runs a command line on a terminal of another kind.
func onTerminalAs(t *testing.T, kind, child string, args ...string) *typist {
	t.Helper()
	term := &typist{t: t, shown: &logtest.Log{}, ended: make(chan struct{})}
	term.openTerminal()
	term.resize(80, 24)
	term.cmd = exec.Command(args[0], args[1:]...)
	term.cmd.Env = append(os.Environ(), processEnv+"="+child, "TERM="+kind, "GORACE=atexit_sleep_ms=0")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = term.screen, term.screen, term.screen
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	term.before = term.mode()
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := term.keyboard.Read(b)
			_, _ = term.shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(term.ended)
		_ = term.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		<-term.ended
		_ = term.screen.Close()
		_ = term.keyboard.Close()
		<-read
		if t.Failed() {
			t.Logf("written to the terminal:\n%q", term.shown.String())
		}
	})
	return term
}

func (term *typist) openTerminal() {
	term.t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		term.t.Fatal(err)
	}
	raw, err := keyboard.SyscallConn()
	if err != nil {
		term.t.Fatal(err)
	}
	var number int
	if err = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		number, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	}); err != nil {
		term.t.Fatal(err)
	}
	term.keyboard = keyboard
	term.screen, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		term.t.Fatal(err)
	}
}

func (term *typist) mode() unix.Termios {
	term.t.Helper()
	mode, err := unix.IoctlGetTermios(int(term.screen.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *mode
}

func (term *typist) resize(columns, lines uint16) {
	term.t.Helper()
	err := unix.IoctlSetWinsize(int(term.screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines})
	if err != nil {
		term.t.Fatal(err)
	}
}

func (term *typist) keys(text string) {
	term.t.Helper()
	if _, err := term.keyboard.WriteString(text); err != nil {
		term.t.Fatal(err)
	}
}

// frame is what is on the screen: what was painted last.
func (term *typist) frame() []string {
	text := term.shown.String()
	end := strings.LastIndex(text, clearBelow)
	if end < 0 {
		return nil
	}
	begin := strings.LastIndex(text[:end], homeCursor)
	painted := strings.NewReplacer(clearToEnd, "", reverseOn, "", reverseOff, "").Replace(text[begin+len(homeCursor) : end])
	return strings.Split(painted, "\r\n")
}

// shows waits until the screen satisfies.
func (term *typist) shows(what string, enough func(lines []string) bool) {
	term.t.Helper()
	late := time.After(patience)
	for {
		changed := term.shown.Changed()
		if enough(term.frame()) {
			return
		}
		select {
		case <-changed:
		case <-term.ended:
			term.t.Fatalf("it ended before it showed %s", what)
		case <-late:
			term.t.Fatalf("it does not show %s, but\n%s", what, strings.Join(term.frame(), "\n"))
		}
	}
}

func (term *typist) says(part string) {
	term.t.Helper()
	term.shows(part, func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), part) })
}

// ends waits for the end, and looks whether the terminal is as it was.
func (term *typist) ends(code int) {
	term.t.Helper()
	select {
	case <-term.ended:
	case <-time.After(patience):
		term.t.Fatal("it does not end")
	}
	if got := term.cmd.ProcessState.ExitCode(); got != code {
		term.t.Errorf("it ended with %d, want %d: %v", got, code, term.cmd.ProcessState)
	}
	term.shown.Await(term.t, screenOff)
	if term.mode() != term.before {
		term.t.Errorf("the terminal's mode is %+v, was %+v", term.mode(), term.before)
	}
}

func TestTopOnATerminal(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(append(threeLocks(), listedLock("evil\x1b]0;x\x07", "\u009b2J", "s", 0, 0, 0))...)
	term := onTerminal(t, "command", "--socket", f.socket, "top", "--interval", "100ms")
	term.says("4 held, 4 shown")
	term.says(`evil\x1b]0;x\x07`)
	if term.mode() == term.before || !strings.HasPrefix(term.shown.String(), screenOn) {
		t.Error("it does not have the terminal for itself")
	}
	term.shows("24 lines", func(lines []string) bool { return len(lines) == 24 })

	term.keys("/job")
	term.says("filter: job_")
	term.keys("\x1b") // alone: nothing follows it
	term.says("4 shown")
	term.keys("/job:b\r")
	term.says("4 held, 1 shown")
	term.keys("sr")
	term.says("sorted by waiters, reversed")
	term.keys("a")
	term.says("all pods | 4 held")
	term.keys("?")
	term.says("Any key goes back.")
	term.keys("x")
	f.holds(threeLocks()[1])
	term.says("all pods | 1 held")

	term.resize(30, 6)
	term.shows("a small view", func(lines []string) bool { return len(lines) == 6 && width(lines[0]) == 30 })
	if strings.ContainsAny(strings.Join(term.frame(), ""), "\x1b\x07\r") || strings.Contains(term.shown.String(), "\u009b") {
		t.Errorf("%q", term.frame())
	}
	term.keys("q")
	term.ends(0)
}

// TestTopSurvivesItsSidecar: it says that there is none, and goes on when there is one.
func TestTopSurvivesItsSidecar(t *testing.T) {
	f := &fakeSidecar{socket: sidecartest.Socket(t)}
	term := onTerminal(t, "command", "--socket", f.socket, "top", "--interval", "100ms")
	term.says("! no sidecar listens at")
	f.holds(threeLocks()...)
	stop := f.serve(t)
	term.says("3 held, 3 shown")
	stop()
	term.says("! no sidecar listens at")
	term.says("other:c") // as last heard
	f.holds(threeLocks()[:1]...)
	t.Cleanup(f.serve(t))
	term.shows("the sidecar that came back", func(lines []string) bool {
		return strings.Contains(lines[0], "1 held, 1 shown") && !strings.Contains(strings.Join(lines, ""), "!")
	})
	term.keys("\x03")
	term.ends(0)
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	f := newFakeSidecar(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			term := onTerminal(t, "command", "--socket", f.socket, "top")
			term.says("0 held")
			if err := term.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			term.ends(128 + int(sig))
		})
	}
	t.Run("panic", func(t *testing.T) {
		term := onTerminal(t, "panic")
		term.shown.Await(t, "panic: asked")
		term.ends(2)
		text := term.shown.String()
		if strings.Index(text, screenOff) > strings.Index(text, "panic: asked") || strings.Count(text, screenOn) != 1 {
			t.Error("the panic is not to be read")
		}
	})
}

// TestTopPrintsForADumbTerminal: one that cannot do what the live view needs.
func TestTopPrintsForADumbTerminal(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	term := onTerminalAs(t, "dumb", "command", os.Args[0], "--socket", f.socket, "top")
	<-term.ended
	term.shown.Await(t, "3 held, 3 shown")
	term.shown.Await(t, "other:c")
	if strings.Contains(term.shown.String(), "\x1b") {
		t.Error("it speaks to the terminal")
	}
}

// TestTopAsksSeldom: what does not come from the next look at the locks.
func TestTopAsksSeldom(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	goOn := f.hold()
	term := onTerminal(t, "command", "--socket", f.socket, "top", "--interval", "1h")
	term.says("this pod | asking")
	term.keys("a")
	term.says("all pods | asking")
	goOn() // the answer is for this pod
	term.says("all pods | 3 held")
	if asked := f.asked(); len(asked) != 2 || asked[0].Get("scope") != "pod" || asked[1].Get("scope") != "all" {
		t.Errorf("it asked for %v", asked)
	}
	for _, size := range []uint16{6, 8, 7} { // one may be seen when the key is over
		term.resize(100, size)
		term.shows("all of the terminal", func(lines []string) bool { return len(lines) == int(size) })
	}
	f.holds(threeLocks()[:1]...)
	term.keys(" ")
	term.says("1 held, 1 shown")
	term.keys("q")
	term.ends(0)
}

// TestTopSuspended: Ctrl-Z, and a stop that somebody else asks for, give the terminal
// to the shell; fg shows the view again.
func TestTopSuspended(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	term := onTerminalAs(t, "xterm", "command", "bash", "-c", "set -m\n"+os.Args[0]+" --socket "+f.socket+` top
for again in 1 2; do
	echo "stopped $?"; read line; fg
done
echo "code $?"`)
	for i, stop := range []func(){
		func() { term.keys("\x1a") },
		func() {
			if err := syscall.Kill(-term.foreground(), syscall.SIGTSTP); err != nil {
				t.Fatal(err)
			}
		},
	} {
		term.shows("the view", func(lines []string) bool {
			return strings.Count(term.shown.String(), screenOn) == i+1 && strings.Contains(strings.Join(lines, ""), "3 held")
		})
		stop()
		term.awaitCount("stopped ", i+1)
		if strings.Count(term.shown.String(), screenOff) != i+1 {
			t.Error("the shell has not got its screen back")
		}
		f.holds(threeLocks()...)
		term.keys("go\n")
	}
	term.awaitCount(screenOn, 3)
	term.keys("q")
	term.shown.Await(t, "code 0")
	term.ends(0)
}

// awaitCount waits until a text was written so many times.
func (term *typist) awaitCount(part string, times int) {
	term.t.Helper()
	late := time.After(patience)
	for {
		changed := term.shown.Changed()
		if strings.Count(term.shown.String(), part) >= times {
			return
		}
		select {
		case <-changed:
		case <-late:
			term.t.Fatalf("%q was not written %d times", part, times)
		}
	}
}

// foreground is the group that has the terminal.
func (term *typist) foreground() (group int) {
	term.t.Helper()
	raw, err := term.keyboard.SyscallConn()
	if err != nil {
		term.t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	if err != nil || group <= 1 {
		term.t.Fatalf("the terminal belongs to %d: %v", group, err)
	}
	return group
}
