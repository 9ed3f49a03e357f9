package redistest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
)

const startLimit = time.Minute

// ServerVariable names the variable of the environment with the server's program, such as that of Valkey; redis-server if it is not set.
const ServerVariable = "LOCKSIDECAR_TEST_REDIS_SERVER"

// Server is one server. Its methods must not be called at the same time.
type Server struct {
	// Address is host:port for clients.
	Address string
	folder  string
	program string
	args    []string
	env     []string
	run     *process.Process
}

// Run starts a server and waits until it serves, for TestMain and for programs. args are more of its arguments, such as
// --appendonly yes. The caller stops it.
func Run(args ...string) (*Server, error) { return RunIn(nil, args...) }

// RunIn is Run with more variables in the server's environment, as NAME=value.
func RunIn(env []string, args ...string) (*Server, error) {
	s, err := newServer(args...)
	if err == nil {
		s.env = env
		err = s.launch()
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Start starts a server that is stopped when the test ends.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := Run(args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Stop)
	return s
}

func newServer(args ...string) (*Server, error) {
	path, err := exec.LookPath(cmp.Or(os.Getenv(ServerVariable), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("redistest: install redis-server and redis-tools, or set %s to a server's program: %w", ServerVariable, err)
	}
	folder, err := process.NewFolder("", "lsredis-")
	if err != nil {
		return nil, err
	}
	port, err := pgtest.FreePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Address: fmt.Sprintf("127.0.0.1:%d", port), folder: folder, program: path}
	s.args = append([]string{
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--protected-mode", "no",
		"--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0",
	}, args...)
	return s, nil
}

// Log is the file with the server's log.
func (s *Server) Log() string { return filepath.Join(s.folder, "log") }

// Running reports whether the process runs.
func (s *Server) Running() bool { return s.run.Running() }

func (s *Server) launch(more ...string) error {
	log := s.Log()
	cmd := exec.Command(s.program, append(slices.Clip(s.args), more...)...)
	var err error
	if len(s.env) > 0 {
		cmd.Env = append(os.Environ(), s.env...)
	}
	if s.run, err = process.Start(cmd, nil, log); err != nil {
		return err
	}
	c := s.Client()
	defer func() { _ = c.Close() }()
	for end := time.Now().Add(startLimit); ; time.Sleep(time.Millisecond) {
		if err = c.Ping(context.Background()).Err(); err == nil || strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		if time.Now().After(end) || !s.run.Running() {
			return fmt.Errorf("redistest: the server does not serve: %w\n%s", err, process.Tail(log))
		}
	}
}

// Client returns a client for administration. The caller closes it.
func (s *Server) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1, Protocol: 2, DisableIdentity: true})
}

// Do sends a command and returns the answer.
func (s *Server) Do(tb testing.TB, args ...any) any {
	tb.Helper()
	c := s.Client()
	defer func() { _ = c.Close() }()
	answer, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
	return answer
}

// Info returns a field of INFO.
func (s *Server) Info(tb testing.TB, section, field string) string {
	tb.Helper()
	text, _ := s.Do(tb, "INFO", section).(string)
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			return value
		}
	}
	tb.Fatalf("INFO %s has no %s", section, field)
	return ""
}

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	if s == nil {
		return
	}
	s.run.Kill()
	_ = os.RemoveAll(s.folder)
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() { s.run.Kill() }

// Freeze stops the process until Thaw. Its connections stay open.
func (s *Server) Freeze() { s.run.Freeze() }

// Thaw lets a frozen server go on.
func (s *Server) Thaw() { s.run.Thaw() }

// Always adds arguments with which the server is started from now on.
func (s *Server) Always(args ...string) { s.args = append(s.args, args...) }

// Again starts a server that has ended, with the files that it has, and with more arguments.
func (s *Server) Again(args ...string) error { return s.launch(args...) }

// Restart kills a server, and starts it with the files that it has.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	if err := s.launch(); err != nil {
		tb.Fatal(err)
	}
}

// Follow makes a server the replica of another, and waits until it has a copy.
func (s *Server) Follow(tb testing.TB, master string) {
	tb.Helper()
	host, port, _ := strings.Cut(master, ":")
	s.Do(tb, "REPLICAOF", host, port)
	await.Until(tb, "the replica has a copy", func() bool { return s.Info(tb, "replication", "master_link_status") == "up" })
}

// CaughtUp waits until a replica has all that its master has now.
func (s *Server) CaughtUp(tb testing.TB, master *Server) {
	tb.Helper()
	offset := master.offset(tb, "master_repl_offset")
	await.Until(tb, "the replica has caught up", func() bool {
		return s.offset(tb, "slave_repl_offset") >= offset || s.offset(tb, "master_repl_offset") >= offset
	})
}

func (s *Server) offset(tb testing.TB, field string) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(s.Info(tb, "replication", field), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// Forget cuts a replica off from its master, so that it misses what follows.
func (s *Server) Forget(tb testing.TB) {
	tb.Helper()
	s.Do(tb, "REPLICAOF", "127.0.0.1", "1")
}

// Promote makes a replica a master.
func (s *Server) Promote(tb testing.TB) {
	tb.Helper()
	s.Do(tb, "REPLICAOF", "NO", "ONE")
}
