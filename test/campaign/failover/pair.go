package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// patience is how long a server may take to do what it must.
const patience = 30 * time.Second

// pair is a primary and its standby, and what a coordinator does with them.
type pair struct {
	nodes    [2]*pgtest.Cluster
	primary  int
	database string
}

// newPair starts two servers. They end with the test.
func newPair(tb testing.TB) *pair {
	tb.Helper()
	p := &pair{}
	for i := range p.nodes {
		p.nodes[i] = pgtest.Start(tb, pgtest.WithTCP(), pgtest.WithSetting("max_connections", "100"),
			pgtest.WithSetting("log_line_prefix", "%m [%p] %a "))
	}
	url := p.nodes[0].NewDatabase(tb)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	p.database = config.Database
	if err := errors.Join(do(url, "CREATE TABLE public.written (n int)"), do(url, "INSERT INTO public.written VALUES (0)"), p.join()); err != nil {
		tb.Fatal(err)
	}
	return p
}

func (p *pair) leader() *pgtest.Cluster  { return p.nodes[p.primary] }
func (p *pair) standby() *pgtest.Cluster { return p.nodes[1-p.primary] }

// url leads to whichever of these nodes takes writes.
func (p *pair) url(nodes ...int) string {
	var hosts []string
	for _, n := range nodes {
		hosts = append(hosts, p.nodes[n].HostAndPort())
	}
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", strings.Join(hosts, ","), p.database)
}

// join makes the other node the primary's synchronous standby, from a new copy.
func (p *pair) join() error {
	if err := p.standby().Follow(p.leader()); err != nil {
		return err
	}
	return p.synchronous(true)
}

// synchronous reports whether the primary waits for its standby. One that is promoted does
// not: it has the setting of before the standby came.
func (p *pair) synchronous(on bool) error {
	url, names, state := p.leader().URL(p.database), "", "async"
	if on {
		names, state = "*", "sync"
	}
	if err := errors.Join(do(url, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'"), do(url, "SELECT pg_reload_conf()")); err != nil {
		return err
	}
	return await("the standby is "+state, func() error {
		return do(url, "SELECT 1 / count(*) FROM pg_stat_replication WHERE sync_state = '"+state+"'")
	})
}

// deafen stops what sends the primary's log to the standby.
func (p *pair) deafen() error {
	sender, err := ask[int](p.leader().URL(p.database), "SELECT pid FROM pg_stat_replication")
	if err != nil {
		return err
	}
	return syscall.Kill(sender, syscall.SIGSTOP)
}

// promote makes the standby the primary, and returns when that first took a write. From
// then on it is the leader.
func (p *pair) promote() (writable time.Time, err error) {
	url := p.standby().URL(p.database)
	if err := do(url, "SELECT pg_promote(false)"); err != nil {
		return writable, err
	}
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return writable, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	err = await("the standby is promoted", func() error {
		_, err := conn.Exec(context.Background(), "UPDATE public.written SET n = n + 1")
		return err
	})
	p.primary = 1 - p.primary
	return time.Now(), err
}

func do(url, sql string) error {
	_, err := ask[any](url, sql)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// ask runs a statement that gives one value, or none.
func ask[T any](url, sql string, args ...any) (value T, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return value, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// await polls until f is nil.
func await(what string, f func() error) error {
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) { // the pause of a poll
		err := f()
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		}
	}
}
