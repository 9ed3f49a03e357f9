package world

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Sidecar is a process of the built binary, and its way to the database.
type Sidecar struct {
	program
	// Index is its place in the world.
	Index int
	// Net is its way to the database, nil where it has a direct one.
	Net *Network

	socket string
	jump   string // the file that says by how much its clocks have jumped
	slept  time.Duration
	client *http.Client
}

// Serve starts a sidecar on a database, with nothing between the two and no fault ahead,
// and waits until it is ready. It ends with the test.
func Serve(tb testing.TB, c Config, index int, database string) *Sidecar {
	tb.Helper()
	s := Launch(tb, c, index, database)
	if err := s.Ready(); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Launch is Serve without waiting until the sidecar is ready.
func Launch(tb testing.TB, c Config, index int, database string) *Sidecar {
	tb.Helper()
	s, err := newSidecar(c, index, database)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(s.failed(), s.Kill()); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func newSidecar(c Config, index int, database string) (*Sidecar, error) {
	name := fmt.Sprintf("sidecar%d", index)
	folder := filepath.Join(c.Folder, name)
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	s := &Sidecar{Index: index, socket: filepath.Join(folder, "s"), jump: filepath.Join(folder, "jump")}
	if err := errors.Join(s.Slept(0), s.Step(0)); err != nil {
		return nil, err
	}
	env := map[string]string{"STORE_URL": database, "SOCKET": s.socket, "POD": name, "LOG_FORMAT": "text", "LOG_LEVEL": "info"}
	maps.Copy(env, c.Settings)
	if index < len(c.Each) {
		maps.Copy(env, c.Each[index])
	}
	s.program = program{name: name, log: filepath.Join(c.Logs, name+".log"), command: func() *exec.Cmd {
		cmd := exec.Command(c.Binary, "serve")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0", bootEnv + "=" + s.jump}
		cmd.Env = append(cmd.Env, c.Env...)
		for name, value := range env {
			cmd.Env = append(cmd.Env, "LOCKSIDECAR_"+name+"="+value)
		}
		return cmd
	}}
	s.client = clientOf(s.socket)
	s.client.Transport.(*http.Transport).DisableKeepAlives = true
	return s, nil
}

// Name is the sidecar's, and its pod's.
func (s *Sidecar) Name() string { return s.name }

// Socket is where the sidecar listens while it runs.
func (s *Sidecar) Socket() string { return s.socket }

// Start starts the sidecar again, and returns when it listens: it need not reach the
// database for that.
func (s *Sidecar) Start() error {
	if err := s.start(); err != nil {
		return err
	}
	return await(s.name+" listens", func() error { return s.ask("/healthz") })
}

// Drain ends the sidecar with SIGTERM. It checks that the sidecar has ended well.
func (s *Sidecar) Drain() error {
	return s.end(syscall.SIGTERM, func(state *os.ProcessState) error {
		if !state.Success() {
			return fmt.Errorf("%s: SIGTERM: %s", s.name, state)
		}
		return nil
	})
}

// Ready waits until the sidecar says that it is.
func (s *Sidecar) Ready() error {
	return await(s.name+" is ready", func() error { return s.ask("/readyz") })
}

// ReadyOrRefused waits until the sidecar says that it is ready, or why not, with one of these texts in its log.
func (s *Sidecar) ReadyOrRefused(why ...string) error {
	return await(fmt.Sprintf("%s is ready, or says one of %q", s.name, why), func() error {
		err := s.ask("/readyz")
		if err == nil {
			return nil
		}
		text, logErr := os.ReadFile(s.log)
		if slices.ContainsFunc(why, func(one string) bool { return strings.Contains(string(text), one) }) {
			return nil
		}
		return errors.Join(err, logErr)
	})
}

func (s *Sidecar) ask(path string) error {
	answer, err := s.client.Get("http://sidecar" + path)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
