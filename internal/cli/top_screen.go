package cli

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// escapePause is how long after an ESC the rest of a key's sequence may come.
const escapePause = 50 * time.Millisecond

// Sequences that are written to the terminal.
const (
	screenOn    = "\x1b[?1049h\x1b[?25l\x1b[?7l" // another screen, no cursor, no wrapping
	screenOff   = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	homeCursor  = "\x1b[H"
	clearToEnd  = "\x1b[K" // of the line
	clearBelow  = "\x1b[J"
	reverseOn   = "\x1b[7m"
	reverseOff  = "\x1b[0m"
	defaultCols = 80
	defaultRows = 24
)

type screen struct {
	in, out *os.File
	before  *term.State
}

func (s *screen) open() error {
	before, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return fmt.Errorf("the terminal cannot be used: %w", err)
	}
	s.before = before
	if _, err := s.out.WriteString(screenOn); err != nil {
		s.close()
		return fmt.Errorf("the terminal cannot be used: %w", err)
	}
	return nil
}

// close gives it back as it was.
func (s *screen) close() {
	_, _ = s.out.WriteString(screenOff)
	_ = term.Restore(int(s.in.Fd()), s.before)
}

// size is that of the terminal, in columns and lines.
func (s *screen) size() (columns, lines int) {
	columns, lines, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns <= 0 || lines <= 0 {
		return defaultCols, defaultRows
	}
	return columns, lines
}

// paint shows lines, in one write: nothing flickers.
func (s *screen) paint(lines []string, header int) error {
	var b strings.Builder
	b.WriteString(homeCursor)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if i == header {
			line = reverseOn + line + reverseOff
		}
		b.WriteString(line + clearToEnd)
	}
	b.WriteString(clearBelow)
	_, err := s.out.WriteString(b.String())
	return err
}

type topAnswer struct {
	all   bool
	locks []topLock
	more  bool
	err   error
}

// topView runs the live view. Only its loop touches the model and the screen.
type topView struct {
	c      *client
	m      *topModel
	screen screen

	answers chan topAnswer
	asking  bool
	bytes   chan []byte
	// panics of the other goroutines: the terminal is handed back before the process ends.
	panics chan any
	parser keyParser
}

func watchTop(c *client, m *topModel, interval time.Duration, in, out *os.File) error {
	v := &topView{
		c: c, m: m, screen: screen{in: in, out: out},
		answers: make(chan topAnswer, 1), bytes: make(chan []byte), panics: make(chan any, 2),
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGTSTP, syscall.SIGWINCH)
	defer signal.Stop(signals)
	if err := v.screen.open(); err != nil {
		return err
	}
	defer v.screen.close()
	v.goGuarded(v.read)
	return v.loop(signals, interval)
}

func (v *topView) loop(signals <-chan os.Signal, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	escaped := time.NewTimer(escapePause)
	defer escaped.Stop()
	v.ask()
	for {
		if err := v.draw(); err != nil {
			return err
		}
		var keys []key
		select {
		case <-tick.C:
			v.ask()
		case answer := <-v.answers:
			v.hear(answer)
		case b, open := <-v.bytes:
			if !open { // the terminal is gone
				return nil
			}
			keys = v.parser.feed(b)
			escaped.Reset(escapePause)
		case <-escaped.C:
			keys = v.parser.flush()
		case sig := <-signals:
			if err := v.signalled(sig); err != nil {
				return err
			}
		case p := <-v.panics:
			panic(p)
		}
		for _, k := range keys {
			if end, err := v.press(k); end || err != nil {
				return err
			}
		}
	}
}

// signalled takes in a signal. A change of the size only makes the view be drawn.
func (v *topView) signalled(sig os.Signal) error {
	switch number, _ := sig.(syscall.Signal); number {
	case syscall.SIGWINCH:
		return nil
	case syscall.SIGTSTP:
		return v.suspend()
	default:
		return exitcode.StatusError(128 + int(number))
	}
}

func (v *topView) draw() error {
	v.m.resize(v.screen.size())
	return v.screen.paint(v.m.frame())
}

func (v *topView) press(k key) (end bool, err error) {
	switch v.m.press(k) {
	case wishQuit:
		return true, nil
	case wishRefresh:
		v.ask()
	case wishSuspend:
		return false, v.suspend()
	case wishNothing:
	}
	return false, nil
}

// suspend stops the process, as Ctrl-Z does elsewhere, if a shell may continue it.
func (v *topView) suspend() error {
	if !(*terminal)(nil).jobControl() {
		return nil
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	v.screen.close()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGSTOP); err == nil {
		<-continued // the kernel may stop this thread a moment later
	}
	return v.screen.open()
}

// ask asks the sidecar, one question at a time.
func (v *topView) ask() {
	if v.asking {
		return
	}
	v.asking = true
	all, kind := v.m.all, v.m.kind
	v.goGuarded(func() {
		locks, more, err := v.c.topLocks(all, kind)
		v.answers <- topAnswer{all, locks, more, err}
	})
}

func (v *topView) hear(answer topAnswer) {
	v.asking = false
	switch {
	case answer.all != v.m.all: // somebody has changed his mind since
		v.ask()
	case answer.err != nil:
		v.m.failed(answer.err)
	default:
		v.m.found(answer.locks, answer.more, time.Now())
	}
}

// read passes on what is typed. It ends with the terminal, or the process.
func (v *topView) read() {
	defer close(v.bytes)
	for {
		b := make([]byte, 256)
		n, err := v.screen.in.Read(b)
		if n > 0 {
			v.bytes <- b[:n]
		}
		if err != nil {
			return
		}
	}
}

// goGuarded runs f in a goroutine whose panic is the loop's.
func (v *topView) goGuarded(f func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				v.panics <- fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		f()
	}()
}
