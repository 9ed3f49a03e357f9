package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	startLimit = time.Minute
	stopLimit  = 10 * time.Second
	logTail    = 2000 // bytes of the server's log in an error
)

// Cluster is a PostgreSQL server in a temporary folder. Its methods may be called by several
// goroutines at a time, except Stop, Kill and Restart.
type Cluster struct {
	bin, folder string
	port        int
	tcp         bool
	who         *syscall.Credential
	server, env []string
	copied      bool // made from the initial data

	// template prepares the database that others are copied from. role is the role in their URLs.
	template func() error
	role     string

	databases atomic.Int64
	mu        sync.Mutex
	running   *process
}

// process is one run of the server.
type process struct {
	pid   int
	ended chan struct{} // closed at the end of the process
	log   int64         // offset of its lines in the log; backends of a killed server may also write there
}

// Run starts a cluster, for TestMain and for programs. The caller stops it.
func Run(options ...Option) (*Cluster, error) {
	s := settings{server: []string{
		"shared_preload_libraries=pg_stat_statements,plpgsql",
		// The limit exceeds the statements of all databases of a package. Otherwise the server
		// would drop some, which a test may be counting.
		"pg_stat_statements.max=20000",
		"max_connections=300",
		"log_min_messages=warning",
		"log_statement=none",
	}}
	for _, option := range options {
		option(&s)
	}
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	who, err := serverUser()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder(who, s.parent)
	if err != nil {
		return nil, err
	}
	c := &Cluster{bin: bin, folder: folder, port: 5432, tcp: s.tcp, who: who, server: s.server, env: s.env}
	if s.prepare != nil {
		c.role, c.template = s.role, sync.OnceValue(func() error { return c.makeTemplate(s.prepare) })
	}
	if err := c.setUp(s.files); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Start starts a cluster that is stopped when the test ends.
func Start(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	c, err := Run(options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Stop)
	return c
}

// Main runs a package's tests with a cluster and returns the exit code.
func Main(m interface{ Run() int }, cluster **Cluster, options ...Option) int {
	c, err := Run(options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Stop()
	*cluster = c
	return m.Run()
}

func (c *Cluster) setUp(files []file) error {
	if c.tcp {
		port, err := FreePort()
		if err != nil {
			return err
		}
		c.port = port
	}
	if err := c.initialize(); err != nil {
		return err
	}
	for _, f := range files {
		if err := c.put(f); err != nil {
			return err
		}
	}
	if err := c.launch(); err != nil {
		return err
	}
	// Databases are copied from template1, so each gets the extension.
	return c.exec(context.Background(), "template1", "CREATE EXTENSION pg_stat_statements")
}

// Stop ends the server at once, like a crash, and removes its folder.
func (c *Cluster) Stop() {
	c.signal(syscall.SIGQUIT)
	_ = os.RemoveAll(c.folder)
	c.handBackInitial()
}

// Kill ends the server with kill -9 and keeps its data, which Restart recovers. The server's
// children notice that and end a moment later.
func (c *Cluster) Kill() {
	c.signal(syscall.SIGKILL)
}

// Restart stops the server if it runs, without waiting for its clients, and starts it again on the
// same data.
func (c *Cluster) Restart(tb testing.TB) {
	tb.Helper()
	if err := c.Again(); err != nil {
		tb.Fatal(err)
	}
}

// Again is Restart for programs without a testing.TB.
func (c *Cluster) Again() error {
	c.signal(syscall.SIGINT)
	return c.launch()
}

// Shutdown stops the server without waiting for its clients and keeps its data.
func (c *Cluster) Shutdown() {
	c.signal(syscall.SIGINT)
}

// Pid returns the process id of the server's first process, or 0 if the server does not run.
func (c *Cluster) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		return 0
	}
	select {
	case <-c.running.ended:
		return 0
	default:
		return c.running.pid
	}
}

// LogFile returns the path of the server's log.
func (c *Cluster) LogFile() string { return c.log() }

func (c *Cluster) data() string { return filepath.Join(c.folder, "data") }
func (c *Cluster) log() string  { return filepath.Join(c.folder, "log") }

func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.folder
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "HOME=" + c.folder, "PATH=" + c.bin + ":/usr/bin:/bin"}
	cmd.SysProcAttr = attributes(c.who)
	return cmd
}

// launch starts the server and returns when it accepts connections.
func (c *Cluster) launch() error {
	args := []string{"-D", c.data(), "-k", c.folder, "-p", strconv.Itoa(c.port)}
	if c.tcp {
		args = append(args, "-h", "127.0.0.1")
	} else {
		args = append(args, "-h", "")
	}
	for _, setting := range c.server {
		args = append(args, "-c", setting)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		server := c.command("postgres", args...)
		server.Env = append(server.Env, c.env...)
		p, err := c.spawn(server)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.running = p
		c.mu.Unlock()
		err = c.await(ctx, p)
		if !errors.Is(err, errOldServer) {
			return err
		}
	}
}

// errOldServer: after kill -9 of the postmaster, its children in other process groups need a moment
// to end. Until then, a server cannot start on their data.
var errOldServer = errors.New("pgtest: processes of the killed server still run")

// await waits until a starting server accepts connections.
func (c *Cluster) await(ctx context.Context, p *process) error {
	for {
		err := c.exec(ctx, "template1", "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			text, err := os.ReadFile(c.log())
			if err == nil && bytes.Contains(text[p.log:], []byte("pre-existing shared memory block")) && ctx.Err() == nil {
				return errOldServer
			}
			return fmt.Errorf("pgtest: the server ended while it started:\n%s", c.tail())
		case <-ctx.Done():
			return fmt.Errorf("pgtest: the server does not answer: %w\n%s", err, c.tail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// spawn starts a server process. The kernel ends the server together with the *thread* that started
// it, so one thread stays reserved while the server runs.
func (c *Cluster) spawn(cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{ended: make(chan struct{})}
	if info, err := log.Stat(); err == nil {
		p.log = info.Size()
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(p.ended)
		err := cmd.Start()
		_ = log.Close()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("pgtest: postgres: %w", err)
	}
	return p, nil
}

// signal sends a signal to the server and returns when it has ended.
func (c *Cluster) signal(sig syscall.Signal) {
	c.mu.Lock()
	p := c.running
	c.running = nil
	c.mu.Unlock()
	if p == nil {
		return
	}
	p.end(sig)
}

// end ends a process by a signal, or by kill -9 if that takes too long.
func (p *process) end(sig syscall.Signal) {
	select {
	case <-p.ended:
		return // the process has ended, and its id may be reused
	default:
	}
	_ = syscall.Kill(p.pid, sig)
	select {
	case <-p.ended:
	case <-time.After(stopLimit):
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.ended
	}
}

func (c *Cluster) tail() []byte {
	text, err := os.ReadFile(c.log())
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-logTail):])
}

// exec runs one statement on a new connection.
func (c *Cluster) exec(ctx context.Context, database, sql string) error {
	conn, err := pgx.Connect(ctx, c.URL(database))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
}

// FreePort returns a port for a server that binds it a moment later, or again after an outage. The
// kernel does not give ports of this range to other listeners or clients.
func FreePort() (int, error) {
	const first, ports, tries = 20_000, 10_000, 100
	var err error
	for range tries {
		port := first + rand.N(ports)
		if err = claim(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("pgtest: %w", err)
}

// claims are the ports of this process, each with a UDP socket of the same number for the life of
// the process. Tests of several packages run at once, and a server binds its port seconds after
// FreePort.
var claims struct {
	mu      sync.Mutex
	sockets []net.PacketConn
}

// claim fails if the port has a listener, or if another test process claims it.
func claim(port int) error {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	claims.mu.Lock()
	defer claims.mu.Unlock()
	claims.sockets = append(claims.sockets, socket)
	return listener.Close()
}

// FreeAddress returns an address on this machine for a server of another program, which does not
// support port 0.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := FreePort()
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}
