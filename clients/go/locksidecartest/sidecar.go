//go:build unix

// Package locksidecartest starts a real sidecar for the tests of an app, without a database, which misbehaves on request.
//
//	func TestTheReportEndsWhenItsLockIsLost(t *testing.T) {
//		sidecar := locksidecartest.Start(t, nil)
//		report := startReport(sidecar.Client()) // holds the lock report:daily
//		sidecar.Lose(t, "report:daily")         // or Kill, Hang, Stop
//		...
//	}
//
// It needs the program locksidecar, in LOCKSIDECAR_BINARY, else in PATH, and a Unix system.
package locksidecartest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

// patience is for what a sidecar must do at once. A busy machine may need long.
const patience = time.Minute

// Sidecar is a sidecar in a process of its own, on a socket of its own. Its store is memory://, so its locks end with it. Anybody may
// break its locks, and a stop waits for nobody. It is not for several goroutines at a time.
type Sidecar struct {
	// Socket is for locksidecar.Config, and LOCKSIDECAR_SOCKET for other processes.
	Socket string

	folder   string
	settings map[string]string
	log      syncBuffer
	cmd      *exec.Cmd
	ended    chan struct{} // closed when the process has ended
	clients  []*locksidecar.Client
}

// Start starts a sidecar, which ends with the test, and returns when it grants locks. Its settings are those of docs/configuration.md,
// without the prefix: {"TTL": "2s"}; nil: none.
func Start(t testing.TB, settings map[string]string) *Sidecar {
	t.Helper()
	s, err := Launch(settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Launch is Start without a test: the caller closes the sidecar.
func Launch(settings map[string]string) (*Sidecar, error) {
	s, err := New(settings)
	if err != nil {
		return nil, err
	}
	if err := s.Run(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// New makes a sidecar that does not run yet. The caller closes it.
func New(settings map[string]string) (*Sidecar, error) {
	folder, err := os.MkdirTemp("", "ls-go") // short, because a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	return &Sidecar{Socket: filepath.Join(folder, "s.sock"), folder: folder, settings: settings}, nil
}

// Binary is the program: LOCKSIDECAR_BINARY, else in PATH.
func Binary() (string, error) {
	if named := os.Getenv("LOCKSIDECAR_BINARY"); named != "" {
		return exec.LookPath(named)
	}
	found, err := exec.LookPath("locksidecar")
	if err != nil {
		return "", fmt.Errorf("there is no program locksidecar in PATH: take it from an archive of a release, or `make build` in a checkout, and let LOCKSIDECAR_BINARY name it (%w)", err)
	}
	return found, nil
}

// Run starts the sidecar again, after Kill or Stop, and returns when it grants locks.
func (s *Sidecar) Run() error { return s.run("/readyz") }

// RunUnready is Run, but returns as soon as the sidecar answers.
func (s *Sidecar) RunUnready() error { return s.run("/v1") }

func (s *Sidecar) run(path string) error {
	binary, err := Binary()
	if err != nil {
		return err
	}
	settings := map[string]string{"STORE_URL": "memory://", "ALLOW_FORCE": "true", "DRAIN_TIMEOUT": "0s"}
	maps.Copy(settings, s.settings)
	cmd := exec.Command(binary, "serve") //nolint:gosec,noctx // the tests' own program, which ends by its own means
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LOCKSIDECAR_SOCKET=" + s.Socket}
	for name, value := range settings {
		cmd.Env = append(cmd.Env, "LOCKSIDECAR_"+name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.cmd, s.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return s.await("the sidecar answers "+path, func() (bool, error) {
		select {
		case <-ended:
			return false, errors.New("it has ended")
		default:
			return s.answers(path), nil
		}
	})
}

// answers reports whether the sidecar answers a GET with 200.
func (s *Sidecar) answers(path string) bool {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.Socket)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Get("http://localhost" + path) //nolint:noctx // it has a timeout
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// await waits for a condition of another process, which tells nobody.
func (s *Sidecar) await(what string, is func() (bool, error)) error {
	const pause = 5 * time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		ok, err := is()
		switch {
		case ok:
			return nil
		case err == nil && time.Now().After(end):
			err = fmt.Errorf("not within %s", patience)
		}
		if err != nil {
			return fmt.Errorf("waiting until %s: %w. Its log:\n%s", what, err, s.Log())
		}
	}
}

// Client makes a client of this sidecar, which Close closes.
func (s *Sidecar) Client() *locksidecar.Client { return s.ClientWith(locksidecar.Config{}) }

// ClientWith is Client with a configuration; its socket is set.
func (s *Sidecar) ClientWith(config locksidecar.Config) *locksidecar.Client {
	config.Socket = s.Socket
	c := locksidecar.New(config)
	s.clients = append(s.clients, c)
	return c
}

// Lose takes a lock from its holder, who is told that it is lost: forced. Of a shared lock or a semaphore, all holders lose it.
func (s *Sidecar) Lose(t testing.TB, key string) {
	t.Helper()
	c := locksidecar.New(locksidecar.Config{Socket: s.Socket, Name: "test"})
	defer func() { _ = c.Close() }()
	if err := c.ForceRelease(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

// Kill kills the sidecar, as a crash would. Until Run it is away.
func (s *Sidecar) Kill() { s.end(syscall.SIGKILL) }

// Stop stops the sidecar as Kubernetes would, and returns when it is gone. Its holders lose their locks.
func (s *Sidecar) Stop() { s.end(syscall.SIGTERM) }

// Hang lets the sidecar hang until Resume: calls are accepted and not answered, and leases run out, after 15 seconds by default; the
// setting TTL shortens this.
func (s *Sidecar) Hang() {
	s.Signal(syscall.SIGSTOP)
	tasks := fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid)
	_ = s.await("it is stopped", func() (bool, error) { // no files: another system than Linux
		files, err := filepath.Glob(tasks)
		for _, file := range files {
			text, readErr := os.ReadFile(file) //nolint:gosec // of our own process
			_, state, _ := strings.Cut(string(text), ") ")
			if readErr == nil && !strings.HasPrefix(state, "T") {
				return false, nil
			}
		}
		return true, err
	})
}

// Resume lets a sidecar go on that hangs.
func (s *Sidecar) Resume() { s.Signal(syscall.SIGCONT) }

// Signal sends a signal to the process.
func (s *Sidecar) Signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }

func (s *Sidecar) end(sig os.Signal) {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	s.Resume() // it may hang
	s.Signal(sig)
	<-s.ended
}

// Log is what the sidecar has written.
func (s *Sidecar) Log() string { return s.log.String() }

// CloseClients closes the clients that Client has made.
func (s *Sidecar) CloseClients() {
	for _, c := range s.clients {
		_ = c.Close()
	}
	s.clients = nil
}

// Close closes the clients, kills the sidecar, and removes its files.
func (s *Sidecar) Close() {
	if s.cmd != nil {
		s.Resume() // if it hangs, each client would wait for its answer in vain
	}
	s.CloseClients()
	s.end(syscall.SIGKILL)
	_ = os.RemoveAll(s.folder)
}

type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
