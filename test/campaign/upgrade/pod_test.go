package upgrade

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

const (
	patience = 30 * time.Second
	ttl      = 2 * time.Second
	// longTTL is for locks that must not be lost while a busy machine does other things.
	longTTL = 8 * time.Second
	drain   = time.Second
	// storeTimeout is how long the store has for an answer.
	storeTimeout = 2 * time.Second
)

// pod is a place for a sidecar: its socket stays, releases come and go.
type pod struct {
	*testing.T
	name, socket, log, database string
	ttl                         time.Duration
	cmd                         *exec.Cmd
	ended                       chan struct{}
}

func newPod(t *testing.T, name, database string) *pod {
	t.Helper()
	folder, err := os.MkdirTemp("", "lsu") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{T: t, name: name, socket: filepath.Join(folder, "s"), log: filepath.Join(folder, "log"), database: database, ttl: ttl}
	t.Cleanup(func() {
		if p.cmd != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		if t.Failed() {
			t.Logf("the log of %s ends with:\n%s", name, last(p.said(), 4000))
		}
		_ = os.RemoveAll(folder)
	})
	return p
}

func (p *pod) command(binary string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range map[string]string{
		"STORE_URL": p.database, "SOCKET": p.socket, "POD": p.name, "LOG_FORMAT": "text",
		"TTL": p.ttl.String(), "DRAIN_TIMEOUT": drain.String(), "STORE_TIMEOUT": storeTimeout.String(), "POSTGRES_POLL_INTERVAL": "500ms",
	} {
		cmd.Env = append(cmd.Env, "LOCKSIDECAR_"+name+"="+value)
	}
	return cmd
}

// run starts a release here, and does not wait for it.
func (p *pod) run(binary string) {
	p.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p.cmd = p.command(binary, "serve")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.Fatal(err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
}

// ready waits until the release that was started grants locks.
func (p *pod) ready() {
	p.Helper()
	p.await("ready", func() error {
		select {
		case <-p.ended:
			p.Fatalf("%s ended: %s\n%s", p.name, p.cmd.ProcessState, p.said())
		default:
		}
		return p.expect("GET", "/readyz", 200)
	})
}

// expect makes a call on a connection of its own.
func (p *pod) expect(method, path string, status int) error {
	conn, err := wire.Dial(p.socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	a, err := conn.Call(patience, method, path, "")
	if err == nil && a.Status != status {
		err = fmt.Errorf("%s %s: %d %s, want %d", method, path, a.Status, a.Detail, status)
	}
	return err
}

// stop ends the release as Kubernetes does.
func (p *pod) stop() {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatalf("%s: %v", p.name, err)
	}
	if code := p.code(); code != 0 {
		p.Errorf("%s: SIGTERM: exit code %d", p.name, code)
	}
}

// code waits for the end of the release, and returns its exit code.
func (p *pod) code() int {
	p.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.Fatalf("%s does not end within %s\n%s", p.name, patience, p.said())
	}
	return p.cmd.ProcessState.ExitCode()
}

// said is all that releases have said here.
func (p *pod) said() string {
	text, err := os.ReadFile(p.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.Error(err)
	}
	return string(text)
}

// last is the end of a text.
func last(text string, most int) string { return text[max(0, len(text)-most):] }

// saidOnce looks for words in one line of what was said.
func (p *pod) saidOnce(words ...string) {
	p.Helper()
	n := 0
	for line := range strings.Lines(p.said()) {
		found := true
		for _, word := range words {
			found = found && strings.Contains(line, word)
		}
		if found {
			n++
		}
	}
	if n != 1 {
		p.Errorf("%s has %d lines with %q, want one", p.name, n, words)
	}
}

// await polls until f is nil.
func (p *pod) await(what string, f func() error) {
	p.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) { // the pause of a poll
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > patience {
			p.Fatalf("%s: not %s within %s: %v", p.name, what, patience, err)
		}
	}
}
