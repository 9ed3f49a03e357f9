package e2e

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestGuide: every command in docs/guide.md, and then in docs/api.md, does what the page says, on each store.
func TestGuide(t *testing.T) {
	t.Parallel()
	var blocks []console
	for _, name := range []string{"guide.md", "api.md"} {
		page, err := os.ReadFile("../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, consoles(string(page))...)
	}
	if len(blocks) < 20 {
		t.Fatalf("only %d blocks were found: the test reads the page wrongly", len(blocks))
	}
	stores(t, func(t *testing.T, o options) {
		g := &reader{t: t, s: start(t, o), terminals: map[string]*terminal{}}
		for _, b := range blocks {
			g.follow(b)
		}
	})
}

// console is a block of the page with commands and their required output. Text before the first
// command is output of an earlier one.
type console struct {
	terminal string
	steps    []step
}

type step struct {
	command string
	output  []string
}

var blocksOfThePage = regexp.MustCompile("(?ms)^```console ?(\\w*)\n(.*?)^```$") //nolint:gocritic // with (?m), ^ may stand in the middle

func consoles(page string) (blocks []console) {
	for _, block := range blocksOfThePage.FindAllStringSubmatch(page, -1) {
		b := console{terminal: block[1], steps: []step{{}}}
		for line := range strings.Lines(block[2]) {
			line = strings.TrimRight(line, "\n")
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				b.steps = append(b.steps, step{command: command})
				continue
			}
			last := &b.steps[len(b.steps)-1]
			last.output = append(last.output, line)
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// reader follows the page with several terminals.
type reader struct {
	t         *testing.T
	s         *sidecar
	env       []string // besides the socket
	terminals map[string]*terminal
	seen      strings.Builder // all output so far
}

// terminal is a shell with its unread output.
type terminal struct {
	stdin io.Writer

	mu    sync.Mutex
	lines []string
}

func (g *reader) terminal(name string) *terminal {
	if tm := g.terminals[name]; tm != nil {
		return tm
	}
	shell := exec.Command("bash")
	shell.Dir = g.t.TempDir()
	shell.Env = append(append(cleanEnv(), "SOCKET="+g.s.socket), g.env...)
	stdin, err := shell.StdinPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	shell.Stderr = shell.Stdout
	if err := shell.Start(); err != nil {
		g.t.Fatal(err)
	}
	tm := &terminal{stdin: stdin}
	go tm.read(out)
	g.t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
	})
	g.terminals[name] = tm
	if name != "" { // as the page asks to do
		g.run(tm, `lock() { curl -sN --unix-socket $SOCKET -X $1 "http://localhost/v1/$2" "${@:3}"; echo; }`)
	}
	return tm
}

func (tm *terminal) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		tm.mu.Lock()
		tm.lines = append(tm.lines, lines.Text())
		tm.mu.Unlock()
	}
}

// follow runs a block and compares the output.
func (g *reader) follow(b console) {
	g.t.Helper()
	tm := g.terminal(b.terminal)
	for _, s := range b.steps {
		if s.command != "" {
			tm.skip()
			g.run(tm, s.command)
		}
		g.expect(tm, s)
	}
}

var (
	lastID    = regexp.MustCompile(`"session":"([0-9a-f]{32})"`)
	lastToken = regexp.MustCompile(`"token":(\d+)`)
)

// run types a command. The id and the token in it are replaced by the latest ones.
func (g *reader) run(tm *terminal, command string) {
	g.t.Helper()
	for prefix, found := range map[string]*regexp.Regexp{"ID=": lastID, "TOKEN=": lastToken} {
		if !strings.HasPrefix(command, prefix) {
			continue
		}
		all := found.FindAllStringSubmatch(g.seen.String(), -1)
		if all == nil {
			g.t.Fatalf("%s: this was not printed before", command)
		}
		command = prefix + all[len(all)-1][1]
	}
	if _, err := io.WriteString(tm.stdin, command+"\n"); err != nil {
		g.t.Fatalf("%s: %v", command, err)
	}
}

// expect waits for the output of a step. A command that only reads is typed again until its output
// is right, because other commands may take a moment.
func (g *reader) expect(tm *terminal, s step) {
	g.t.Helper()
	reads := strings.HasPrefix(s.command, "lock GET") && !strings.Contains(s.command, "/events")
	deadline := time.Now().Add(patience)
	for _, want := range s.output {
		for again := time.Now().Add(time.Second / 4); ; time.Sleep(time.Millisecond) { // the pause of a poll
			got, ok := tm.next(want)
			if ok && matches(want, got) {
				g.seen.WriteString(got + "\n")
				break
			}
			if ok && !reads {
				g.t.Fatalf("%s\nprinted %s\nwant    %s", s.command, got, want)
			}
			if reads && time.Now().After(again) {
				g.run(tm, s.command)
				again = time.Now().Add(time.Second / 4)
			}
			if time.Now().After(deadline) {
				g.t.Fatalf("%s\ndid not print %s", s.command, want)
			}
		}
	}
	if reads {
		g.settle(tm)
	}
}

// settle waits until all typed commands are done, because a repeated command may still print.
func (g *reader) settle(tm *terminal) {
	g.t.Helper()
	const done = "all of it is done"
	g.run(tm, "echo "+done)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the pause of a poll
		if got, _ := tm.next(done); got == done {
			return
		}
		if time.Now().After(deadline) {
			g.t.Fatal("the shell hangs")
		}
	}
}

// next returns the next line. Empty lines, and the regular comments of event streams, are left out
// unless they are wanted.
func (tm *terminal) next(want string) (string, bool) {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	for len(tm.lines) > 0 {
		line := tm.lines[0]
		tm.lines = tm.lines[1:]
		if line == want || line != "" && line != ":" {
			return line, true
		}
	}
	return "", false
}

// skip drops unread output.
func (tm *terminal) skip() {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	tm.lines = nil
}

// matches compares a line with one of the page.
func matches(want, got string) bool {
	parts := strings.Split(want, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(got)
}
