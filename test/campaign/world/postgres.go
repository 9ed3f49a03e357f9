package world

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

const (
	// diskSize is enough for the server, its log and some traffic.
	diskSize = "320m"
	// slots are the connections that are not kept for superusers. Each sidecar has 4.
	slots = 60
	// role is the role of the sidecars: the owner of the database, without other privileges.
	role = "sidecar"
)

// Postgres is a PostgreSQL server.
type Postgres struct {
	cluster *pgtest.Cluster
	// way is the URL that a sidecar's network leads to: that of PgBouncer, where the world is pooled.
	way  string
	name string // of the database
	disk string
	*clock
}

func newPostgres(tb testing.TB, c Config) *Postgres {
	tb.Helper()
	p := &Postgres{disk: filepath.Join(c.Folder, diskName), clock: newClock(tb, c.Folder)}
	if err := mount(p.disk); err != nil {
		tb.Fatal(err)
	}
	p.cluster = pgtest.Start(tb, pgtest.WithTCP(), pgtest.WithParent(p.disk),
		pgtest.WithEnv(p.environment()...),
		pgtest.WithSetting("max_connections", strconv.Itoa(slots+3)),
		pgtest.WithSetting("log_line_prefix", "%m [%p] %u "),
		// Few and small files of the log ahead of need, so that a full disk is noticed soon.
		pgtest.WithSetting("wal_recycle", "off"), pgtest.WithSetting("min_wal_size", "32MB"), pgtest.WithSetting("max_wal_size", "64MB"),
	)
	tb.Cleanup(func() { p.keepLog(c.Logs) })
	if err := p.makeDatabase(); err != nil {
		tb.Fatal(err)
	}
	if p.way = p.SidecarURL(); c.Pooled {
		p.way = p.cluster.Pooler(tb, p.way, poolSize)
	}
	return p
}

// network puts two proxies before the server.
func (p *Postgres) network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error) {
	address, err := url.Parse(p.way)
	if err != nil {
		return nil, err
	}
	bytes, err := spoilable(tb, server, name, address.Host)
	if err != nil {
		return nil, err
	}
	address.Host = bytes.Listen
	statements := pgproxy.Start(tb, address.String())
	const greeting = 300 // the beginning of a connection
	return &Network{Statements: statements, Greeting: greeting, url: statements.URL(), ways: []way{{statements, bytes}}, probe: connectAndAsk}, nil
}

// connectAndAsk connects and asks for nothing.
func connectAndAsk(ctx context.Context, address string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT")
	return errors.Join(err, conn.Close(ctx))
}

func (p *Postgres) keepLog(folder string) {
	if text, err := os.ReadFile(p.cluster.LogFile()); err == nil {
		_ = os.WriteFile(filepath.Join(folder, "postgres.log"), text, 0o644)
	}
}

func (p *Postgres) makeDatabase() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	address, err := p.cluster.MakeDatabase(ctx)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return err
	}
	p.name = config.Database
	_, err = p.Do("CREATE ROLE " + role + " LOGIN")
	if err == nil {
		_, err = p.Do("ALTER DATABASE " + p.name + " OWNER TO " + role)
	}
	return err
}

// URL leads to the database, for its superuser.
func (p *Postgres) URL() string { return p.cluster.URL(p.name) }

// SidecarURL is URL for sidecars.
func (p *Postgres) SidecarURL() string {
	return strings.Replace(p.URL(), "postgres@", role+"@", 1)
}

// Do runs a statement as a superuser and returns how many rows it was about.
func (p *Postgres) Do(sql string, args ...any) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return 0, err
	}
	tag, err := conn.Exec(ctx, sql, args...)
	return int(tag.RowsAffected()), errors.Join(err, conn.Close(ctx))
}

// Answers reports whether a sidecar without proxies would get an answer now.
func (p *Postgres) Answers(limit time.Duration) error {
	_, err := timed(limit, func(ctx context.Context) error { return connectAndAsk(ctx, p.SidecarURL()) })
	return err
}

// View looks into the database as its superuser.
func (p *Postgres) View() stored.View { return stored.Postgres(p.URL()) }

// Kill ends the server with kill -9. Its children end a moment later.
func (p *Postgres) Kill() { p.cluster.Kill() }

// Restart starts the server anew, with recovery when it needs one, and ends it first
// when it runs.
func (p *Postgres) Restart() error { return p.cluster.Again() }

// Runs reports whether the server's first process does.
func (p *Postgres) Runs() bool { return p.cluster.Pid() != 0 }

// Recovered waits until the server takes connections, and starts it again if it has ended: its recovery may fail while the disk
// is full, and it ends a moment later.
func (p *Postgres) Recovered() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if !p.Runs() {
			return p.Restart()
		}
		_, err := p.Do("SELECT 1")
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Freeze stops all processes of the server, and returns what lets them go on.
func (p *Postgres) Freeze() (thaw func(), stopped int, err error) {
	first := p.cluster.Pid()
	if first == 0 {
		return nil, 0, errors.New("world: PostgreSQL does not run")
	}
	// The first one first: it starts no others then.
	frozen := []int{first}
	thaw = func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	if err := freeze(first); err != nil {
		return thaw, 0, err
	}
	for _, pid := range children(first) {
		if freeze(pid) == nil { // or it has just ended
			frozen = append(frozen, pid)
		}
	}
	return thaw, len(frozen), nil
}

// KillOne ends one backend of a sidecar with kill -9. The server takes that for a crash
// and starts anew by itself. An error says that it has killed none.
func (p *Postgres) KillOne() (killed int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var pid int
	const any1 = "SELECT pid FROM pg_stat_activity WHERE usename = $1 LIMIT 1"
	if err := conn.QueryRow(ctx, any1, role).Scan(&pid); err != nil {
		return 0, fmt.Errorf("no backend of a sidecar: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return 0, fmt.Errorf("backend %d has just ended: %w", pid, err)
	}
	return 1, nil
}

// Terminate ends the connections of sidecars whose last statement is LIKE the pattern.
func (p *Postgres) Terminate(like string) (int, error) {
	return p.Do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1 AND query LIKE $2", role, like)
}

// Ahead is by how much the server's clock is ahead of this machine's.
func (p *Postgres) Ahead() (ahead time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	return quickest(ctx, func() (now time.Time, err error) {
		err = conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
		return now, err
	})
}

// Fill fills the disk, and returns what makes room again.
func (p *Postgres) Fill() (room func() error, err error) { return fill(p.disk) }

// Refused is how often the server has told a sidecar that there is no connection left.
func (p *Postgres) Refused() int {
	return p.logged(" "+role+" FATAL:  remaining connection slots") + p.logged(" "+role+" FATAL:  sorry, too many clients")
}

// DiskFull is how often the server has complained that it is.
func (p *Postgres) DiskFull() int { return p.logged("No space left on device") }

func (p *Postgres) failed() error {
	if n := p.logged("ERROR:  deadlock detected"); n > 0 {
		return fmt.Errorf("world: PostgreSQL saw %d deadlocks", n)
	}
	// A server that cannot write its log panics, and aborts then. No other fault has these signals.
	crashes := p.logged("was terminated by signal 11") + p.logged("was terminated by signal 6") - p.logged("PANIC:")
	if crashes > 0 {
		return fmt.Errorf("world: PostgreSQL crashed %d times by itself", crashes)
	}
	return nil
}

func (p *Postgres) logged(text string) int {
	log, _ := os.ReadFile(p.cluster.LogFile())
	return strings.Count(string(log), text)
}

// Occupy takes all connections that sidecars could have, and goes on to take those that
// become free, until release.
func (p *Postgres) Occupy() (release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var taken []*pgx.Conn
		defer func() {
			for _, conn := range taken {
				_ = conn.Close(context.Background())
			}
		}()
		for ctx.Err() == nil {
			if conn, err := pgx.Connect(ctx, p.SidecarURL()+"&application_name=taker"); err == nil {
				taken = append(taken, conn)
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // all taken: soon again
			}
		}
	}()
	return func() { cancel(); <-done }
}

// children are the processes that a process has started.
func children(parent int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
