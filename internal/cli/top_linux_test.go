package cli

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// topOnTerminal runs `top` on a terminal of so many lines, and returns what is written there.
func topOnTerminal(t *testing.T, kind, socket string, lines uint16) (shown *logtest.Log, ended chan struct{}) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "--socket", socket, "top", "--sort", "key")
	if kind != "dumb" {
		cmd.Args = append(cmd.Args, "--interval", "100ms")
	}
	cmd.Env = append(os.Environ(), "TERM="+kind)
	return onTerminal(t, cmd, lines)
}

// onTerminal runs this program's command on a terminal of so many lines, and returns what is written there.
func onTerminal(t *testing.T, cmd *exec.Cmd, lines uint16) (shown *logtest.Log, ended chan struct{}) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	screen, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: lines}); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, processEnv+"=command", "GORACE=atexit_sleep_ms=0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen, screen, screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shown, ended = &logtest.Log{}, make(chan struct{})
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			_, _ = shown.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = screen.Close() // the reader ends: nobody has the terminal open
		<-read
		_ = keyboard.Close()
	})
	return shown, ended
}

// On a terminal one table replaces the other, with as many lines as there are. A sidecar that ends is
// told, and one that comes back is shown.
func TestTopOnATerminal(t *testing.T) {
	f := &fakeSidecar{socket: sidecartest.Socket(t)}
	f.holds(append(threeLocks(), listedLock("z:evil\x1b]0;x\x07", "\u009b2J", "s", 0, 0, 0))...)
	stop := f.serve(t)
	shown, _ := topOnTerminal(t, "xterm", f.socket, 6)
	shown.Await(t, "other:c")
	stop()
	shown.Await(t, "no sidecar listens at")
	f.holds(threeLocks()[:1]...)
	t.Cleanup(f.serve(t))
	shown.Await(t, "1 held, 1 shown")
	for _, frame := range frames(shown.String()) {
		if len(frame) > 6 || strings.ContainsFunc(strings.Join(frame, ""), unprintable) {
			t.Errorf("%q", frame)
		}
	}
	if strings.Contains(shown.String(), "z:evil") {
		t.Error("more lines than the terminal has")
	}
}

// frames are the lines of each whole picture, without what draws them.
func frames(written string) (all [][]string) {
	drawn := strings.NewReplacer(endOfLine, "", inverse, "", plainText, "", otherScreen, "", formerScreen, "")
	for frame := range strings.SplitSeq(written, topOfScreen) {
		if whole, ok := strings.CutSuffix(drawn.Replace(frame), endOfScreen); ok {
			all = append(all, strings.Split(whole, "\r\n"))
		}
	}
	return all
}

// A terminal that cannot move its cursor gets one table.
func TestTopPrintsForADumbTerminal(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(threeLocks()...)
	shown, ended := topOnTerminal(t, "dumb", f.socket, 24)
	<-ended
	shown.Await(t, "other:c")
	if strings.Contains(shown.String(), "\x1b") {
		t.Error("it speaks to the terminal")
	}
}
