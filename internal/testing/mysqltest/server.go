package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
)

const (
	folderPrefix = "lsmy-"
	// startLimit is how long a server may take until it serves.
	startLimit = time.Minute
	// errorNoThread is the server's error if a connection that is killed has ended already.
	errorNoThread = 1094
)

// errMissing names what to install.
var errMissing = errors.New("mysqltest: MariaDB's programs (mariadbd, mariadb-install-db) are not installed: apt-get install mariadb-server")

// Server is a MariaDB or MySQL server in a temporary folder. Its methods must not be called at the same time, except NewDatabase.
type Server struct {
	// Address is host:port.
	Address string

	folder    string
	who       *syscall.Credential
	args, env []string
	run       *process.Process
	databases atomic.Int64
}

// Option changes how a server is set up.
type Option func(*settings)

type settings struct {
	flags  []string
	env    []string
	parent string
	files  map[string][]byte
}

// WithFlag gives the server a flag, such as --binlog-format=ROW.
func WithFlag(flag string) Option {
	return func(s *settings) { s.flags = append(s.flags, flag) }
}

// WithFile puts a file into the server's folder. A flag names it relative to the folder of the data: ../NAME.
func WithFile(name string, content []byte) Option {
	return func(s *settings) { s.files[name] = content }
}

// WithParent puts the server's folder into this one.
func WithParent(folder string) Option {
	return func(s *settings) { s.parent = folder }
}

// WithEnv gives the server variables, as NAME=value.
func WithEnv(variables ...string) Option {
	return func(s *settings) { s.env = append(s.env, variables...) }
}

// OnDisk puts the server's folder on the disk of temporary files, for measurements. Without it, it is in memory if there is
// space: written data survives a kill of the server there.
func OnDisk() Option {
	return func(s *settings) { s.parent = os.TempDir() }
}

// Run starts a server and waits until it serves, for TestMain and for programs. The caller stops it.
func Run(options ...Option) (*Server, error) {
	s := settings{parent: pgtest.Memory(), files: map[string][]byte{}}
	for _, option := range options {
		option(&s)
	}
	if err := installed(); err != nil {
		return nil, err
	}
	who, err := serverUser()
	if err != nil {
		return nil, err
	}
	folder, err := process.NewFolder(s.parent, folderPrefix)
	if err != nil {
		return nil, err
	}
	m := &Server{folder: folder, who: who, env: s.env}
	if err := m.setUp(&s); err != nil {
		m.Stop()
		return nil, err
	}
	return m, nil
}

// Start starts a server that is stopped when the test ends.
func Start(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	m, err := Run(options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Stop)
	return m
}

// serverUser is the user mysql instead of root, which the server refuses. Nil is the caller.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil means the caller's user
	}
	u, err := user.Lookup("mysql")
	if err != nil {
		return nil, errMissing
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("mysqltest: user mysql: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (m *Server) data() string   { return filepath.Join(m.folder, "data") }
func (m *Server) log() string    { return filepath.Join(m.folder, "log") }
func (m *Server) socket() string { return filepath.Join(m.folder, "s") }

// Log is the file of the server's log.
func (m *Server) Log() string { return m.log() }

func (m *Server) setUp(s *settings) error {
	for name, content := range s.files {
		if err := os.WriteFile(filepath.Join(m.folder, name), content, 0o600); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
	}
	always, running := small()
	always = append(always, "--tmpdir="+m.folder) // in a common one, servers remove each other's tables
	making := install(m.data(), always...)
	if m.who != nil {
		making.Args = append(making.Args, "--user=mysql")
		if err := chownAll(m.folder, m.who); err != nil {
			return err
		}
	}
	if out, err := making.CombinedOutput(); err != nil {
		return fmt.Errorf("mysqltest: %s: %w\n%s", making.Path, err, out)
	}
	port, err := pgtest.FreePort()
	if err != nil {
		return err
	}
	m.Address = fmt.Sprintf("127.0.0.1:%d", port)
	m.args = slices.Concat([]string{
		"--no-defaults", "--datadir=" + m.data(), "--socket=" + m.socket(), "--pid-file=" + filepath.Join(m.folder, "pid"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--skip-name-resolve", "--performance-schema=OFF",
		"--innodb-buffer-pool-size=64M", "--max-connections=600",
	}, always, running, s.flags)
	return m.launch()
}

func chownAll(folder string, who *syscall.Credential) error {
	names, _ := filepath.Glob(filepath.Join(folder, "*"))
	for _, name := range append(names, folder) {
		if err := os.Chown(name, int(who.Uid), int(who.Gid)); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
	}
	return nil
}

// launch starts the server and returns when it serves.
func (m *Server) launch() error {
	cmd := exec.Command(serverProgram(), m.args...)
	cmd.Dir, cmd.Env = m.folder, append(os.Environ(), m.env...)
	var err error
	if m.run, err = process.Start(cmd, m.who, m.log()); err != nil {
		return err
	}
	admin, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		err := admin.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-m.run.Ended:
			return fmt.Errorf("mysqltest: the server ended while it started:\n%s", process.Tail(m.log()))
		case <-ctx.Done():
			return fmt.Errorf("mysqltest: the server does not answer: %w\n%s", err, process.Tail(m.log()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop kills the server and removes its folder.
func (m *Server) Stop() {
	m.run.Kill()
	_ = os.RemoveAll(m.folder)
}

// Kill ends the server as kill -9 does, and keeps its data.
func (m *Server) Kill() { m.run.Kill() }

// Freeze stops the server's process until Thaw. Its connections stay open.
func (m *Server) Freeze() { m.run.Freeze() }

// Thaw lets a frozen server go on.
func (m *Server) Thaw() { m.run.Thaw() }

// Restart kills the server if it runs, starts it again on the same data, with further flags, and waits until it serves.
func (m *Server) Restart(tb testing.TB, flags ...string) {
	tb.Helper()
	if err := m.Again(flags...); err != nil {
		tb.Fatal(err)
	}
}

// Again is the same for programs without a test.
func (m *Server) Again(flags ...string) error {
	m.Kill()
	m.args = append(m.args, flags...)
	return m.launch()
}

// Rename restarts the server as another one with the same data, as a replica that is promoted. id differs from that of
// other servers.
func (m *Server) Rename(tb testing.TB, id int) {
	tb.Helper()
	m.Kill()
	if err := errors.Join(m.rename(id), m.launch()); err != nil {
		tb.Fatal(err)
	}
}

// Pid is that of the server's process.
func (m *Server) Pid() int { return m.run.Pid() }

// Runs reports whether the server's process does.
func (m *Server) Runs() bool { return m.run.Running() }

// Exec carries out statements as root, in no database.
func (m *Server) Exec(tb testing.TB, statements string) {
	tb.Helper()
	if err := m.Do(context.Background(), statements); err != nil {
		tb.Fatal(err)
	}
}

// Do is the same for programs without a test.
func (m *Server) Do(ctx context.Context, statements string) error {
	admin, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	if _, err = admin.ExecContext(ctx, statements); err != nil {
		return fmt.Errorf("mysqltest: %s: %w", statements, err)
	}
	return nil
}

// KillUser ends all connections of a user.
func (m *Server) KillUser(tb testing.TB, name string) {
	tb.Helper()
	if err := m.EndSessions(context.Background(), name); err != nil {
		tb.Fatal(err)
	}
}

// EndSessions is the same for programs without a test.
func (m *Server) EndSessions(ctx context.Context, name string) error {
	admin, err := m.open("")
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	rows, err := admin.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE user = ?", name)
	if err != nil {
		return fmt.Errorf("mysqltest: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return fmt.Errorf("mysqltest: %w", err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("mysqltest: %w", err)
	}
	for _, id := range ids {
		_, err := admin.ExecContext(ctx, fmt.Sprintf("KILL %d", id))
		if known := (*mysql.MySQLError)(nil); err != nil && (!errors.As(err, &known) || known.Number != errorNoThread) {
			return fmt.Errorf("mysqltest: %w", err)
		}
	}
	return nil
}

// Connect connects as root to a database, or to none. The caller closes it.
func (m *Server) Connect(database string) (*sql.DB, error) { return m.open(database) }

// open connects as root.
func (m *Server) open(database string) (*sql.DB, error) {
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = "root", "unix", m.socket(), database
	config.MultiStatements, config.Logger, config.Params = true, &mysql.NopLogger{}, map[string]string{"autocommit": "1"}
	dialer, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("mysqltest: %w", err)
	}
	return sql.OpenDB(dialer), nil
}

// Database is a database of its own on a server, with a user who has all rights in it.
type Database struct {
	Server *Server
	Name   string
}

// NewDatabase makes an empty database.
func (m *Server) NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	d, err := m.MakeDatabase()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// MakeDatabase is NewDatabase for programs without a testing.TB.
func (m *Server) MakeDatabase() (*Database, error) {
	name := fmt.Sprintf("test%d", m.databases.Add(1))
	err := m.Do(context.Background(), fmt.Sprintf("CREATE DATABASE %[1]s; CREATE USER %[1]s IDENTIFIED BY '%[1]s'; GRANT ALL ON %[1]s.* TO %[1]s", name))
	if err != nil {
		return nil, fmt.Errorf("mysqltest: %w", err)
	}
	return &Database{Server: m, Name: name}, nil
}

// URL is a store's URL of the database.
func (d *Database) URL() string { return d.At(d.Server.Address) }

// At is the same at another address, such as that of a link.
func (d *Database) At(address string) string {
	return fmt.Sprintf("mysql://%[1]s:%[1]s@%[2]s/%[1]s", d.Name, address)
}

// Open connects to the database as root. The connections end with the test.
func (d *Database) Open(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := d.Server.open(d.Name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}
