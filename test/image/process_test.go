package image

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a running container.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{}
	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed with every line
}

// start starts the container. It is killed at the end of the test.
func (c container) start(t *testing.T) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.Env = []string{containerEnv + "=" + string(text)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	go p.read(out)
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", c.Args, p.output())
		}
	})
	return p
}

// read keeps what the process prints, until it has ended.
func (p *process) read(out *os.File) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
	_ = out.Close()
}

func (p *process) signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// await returns the first line that has all the parts, once it is there.
func (p *process) await(parts ...string) string {
	p.t.Helper()
	limit := time.After(patience)
	for from := 0; ; {
		p.mu.Lock()
		lines, changed := p.lines, p.changed
		p.mu.Unlock()
		for ; from < len(lines); from++ {
			if hasAll(lines[from], parts) {
				return lines[from]
			}
		}
		select {
		case <-changed:
		case <-p.ended:
			if len(p.output()) == len(strings.Join(lines, "\n")) {
				p.t.Fatalf("waiting for %q: ended with code %d", parts, p.cmd.ProcessState.ExitCode())
			}
		case <-limit:
			p.t.Fatalf("waiting for %q: not in %s", parts, patience)
		}
	}
}

func hasAll(line string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(line, part) {
			return false
		}
	}
	return true
}

// code waits for the end and returns the exit code; -1 after a signal.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("still running after %s", patience)
		return 0
	}
}
