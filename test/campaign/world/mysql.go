package world

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	driver "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// schema is the database, and the user of sidecars, who has all rights in it and no others.
const schema = "campaign"

// MySQL is a MariaDB server, or one of MySQL's (see mysqltest), and its asynchronous replica. The machine's clock is one for both.
type MySQL struct {
	nodes [2]*mysqltest.Server
	disk  string
	*clock

	mu      sync.Mutex
	primary int
}

func newMySQL(tb testing.TB, c Config) *MySQL {
	tb.Helper()
	m := &MySQL{disk: filepath.Join(c.Folder, diskName), clock: newClock(tb, c.Folder)}
	if err := mount(m.disk); err != nil {
		tb.Fatal(err)
	}
	for i := range m.nodes {
		m.nodes[i] = mysqltest.Start(tb, mysqltest.Replicates(i+1), mysqltest.WithParent(m.disk),
			mysqltest.WithEnv(m.environment()...))
		m.nodes[i].Exec(tb, fmt.Sprintf("SET SESSION sql_log_bin = 0; CREATE USER %[1]s IDENTIFIED BY '%[1]s'; GRANT ALL ON %[1]s.* TO %[1]s", schema))
	}
	tb.Cleanup(func() { m.keepLogs(c.Logs) })
	m.nodes[0].Exec(tb, "CREATE DATABASE "+schema)
	if err := m.Rejoin(); err != nil {
		tb.Fatal(err)
	}
	return m
}

func (m *MySQL) keepLogs(folder string) {
	for i, n := range m.nodes {
		if text, err := os.ReadFile(n.Log()); err == nil {
			_ = os.WriteFile(filepath.Join(folder, fmt.Sprintf("mysql%d.log", i)), text, 0o644)
		}
	}
}

// network puts two proxies before each server.
func (m *MySQL) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	const greeting = 100 // what a server says first
	network := &Network{Greeting: greeting, probe: askPrimary}
	var addresses []string
	for i, n := range m.nodes {
		bytes, err := spoilable(tb, server, fmt.Sprintf("%s-%d", name, i), n.Address)
		if err != nil {
			return nil, err
		}
		front := process.NewLink(tb, bytes.Listen)
		network.ways = append(network.ways, way{front, bytes})
		addresses = append(addresses, front.Address)
	}
	network.url = m.url(addresses...)
	return network, nil
}

func (m *MySQL) url(addresses ...string) string {
	return fmt.Sprintf("mysql://%[1]s:%[1]s@%[2]s/%[1]s", schema, strings.Join(addresses, ","))
}

// askPrimary connects to the first of the servers that takes writes.
func askPrimary(ctx context.Context, address string) error {
	_, rest, _ := strings.Cut(address, "@")
	hosts, _, _ := strings.Cut(rest, "/")
	err := errors.New("no server takes writes")
	for host := range strings.SplitSeq(hosts, ",") {
		err = errors.Join(err, askOne(ctx, host))
		if errors.Is(err, errPrimary) {
			return nil
		}
	}
	return err
}

var errPrimary = errors.New("this is the primary")

// askOne returns errPrimary if the server takes writes.
func askOne(ctx context.Context, host string) error {
	config := driver.NewConfig()
	config.User, config.Passwd, config.Net, config.Addr, config.Logger = schema, schema, "tcp", host, &driver.NopLogger{}
	dialer, err := driver.NewConnector(config)
	if err != nil {
		return err
	}
	db := sql.OpenDB(dialer)
	defer func() { _ = db.Close() }()
	readOnly := true
	if err := db.QueryRowContext(ctx, "SELECT @@global.read_only").Scan(&readOnly); err != nil {
		return err
	}
	if !readOnly {
		return errPrimary
	}
	return errors.New("the server is read-only")
}

// Primary is the server that takes writes, and Replica the other one.
func (m *MySQL) Primary() *mysqltest.Server { return m.node(0) }

// Replica follows Primary.
func (m *MySQL) Replica() *mysqltest.Server { return m.node(1) }

func (m *MySQL) node(other int) *mysqltest.Server {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[(m.primary+other)%2]
}

// Answers implements [Store].
func (m *MySQL) Answers(limit time.Duration) error {
	_, err := timed(limit, func(ctx context.Context) error { return askPrimary(ctx, m.url(m.Primary().Address)) })
	return err
}

// View implements [Store].
func (m *MySQL) View() stored.View {
	return stored.MySQL(func() (*sql.DB, error) { return m.Primary().Connect(schema) })
}

// failed reads the servers' logs for what ends a server.
func (m *MySQL) failed() error {
	var errs []error
	for _, n := range m.nodes {
		text, err := os.ReadFile(n.Log())
		for _, cry := range []string{"Assertion failure", "got signal 11", "got signal 6", "is corrupt"} {
			if strings.Contains(string(text), cry) {
				err = errors.Join(err, fmt.Errorf("world: %q in %s", cry, n.Log()))
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (m *MySQL) within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return f(ctx)
}

// Do runs statements on the primary as root.
func (m *MySQL) Do(statements string) error {
	return m.within(func(ctx context.Context) error { return m.Primary().Do(ctx, statements) })
}

// KillSidecars ends the connections of all sidecars to the primary.
func (m *MySQL) KillSidecars() error {
	return m.within(func(ctx context.Context) error { return m.Primary().EndSessions(ctx, schema) })
}

// Restart starts the primary again.
func (m *MySQL) Restart() error { return m.Primary().Again("--read-only=OFF") }

// Rejoin makes the other server the primary's replica, from a new copy.
func (m *MySQL) Rejoin() error {
	return m.within(func(ctx context.Context) error { return m.Replica().Follow(ctx, m.Primary(), schema) })
}

// Behind lets the replica miss what is committed from now on.
func (m *MySQL) Behind() error {
	return m.within(func(ctx context.Context) error { return m.Replica().Deafen(ctx) })
}

// Failover kills the primary, promotes the replica, and starts the old primary as one that takes no writes.
func (m *MySQL) Failover() error {
	old := m.Primary()
	old.Kill()
	if err := m.within(func(ctx context.Context) error { return m.Replica().Promote(ctx) }); err != nil {
		return err
	}
	m.mu.Lock()
	m.primary = 1 - m.primary
	m.mu.Unlock()
	return old.Again("--read-only=ON")
}

// Lock locks all rows of locks as an operator's open transaction does, and returns what ends it.
func (m *MySQL) Lock() (end func() error, rows int, err error) {
	db, err := m.Primary().Connect(schema)
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	end = func() error { cancel(); return db.Close() }
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT name FROM locksidecar_locks FOR UPDATE) l").Scan(&rows)
	}
	return end, rows, err
}

// Ahead is by how much the primary's clock is ahead of this machine's.
func (m *MySQL) Ahead() (ahead time.Duration, err error) {
	db, err := m.Primary().Connect(schema)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	err = m.within(func(ctx context.Context) error {
		ahead, err = quickest(ctx, func() (now time.Time, err error) {
			var micros int64
			err = db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))").Scan(&micros)
			return time.UnixMicro(micros), err
		})
		return err
	})
	return ahead, err
}

// Fill fills the disk of both servers, and returns what makes room again.
func (m *MySQL) Fill() (room func() error, err error) { return fill(m.disk) }

// DiskFull is how often the primary has complained that it is.
func (m *MySQL) DiskFull() int {
	text, _ := os.ReadFile(m.Primary().Log())
	return strings.Count(string(text), "No space left on device") + strings.Count(string(text), "Disk is full")
}
