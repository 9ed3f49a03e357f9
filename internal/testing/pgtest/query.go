package pgtest

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Query runs a statement that gives one value, on a connection of its own: the superuser's,
// whosoever the URL is. It keeps the connection for the next query of that URL: a test that polls
// asks hundreds of times, and each new session costs the server a process.
func Query[T any](tb testing.TB, url, sql string, args ...any) T {
	tb.Helper()
	url = Admin(url)
	if conn := takeKept(url); conn != nil {
		value, err := query[T](conn, sql, args)
		if err == nil {
			keep(url, conn)
			return value
		}
		_ = conn.Close(context.Background()) // it was ended, or the server was: a new one tells
	}
	conn, err := connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	value, err := query[T](conn, sql, args)
	if err != nil {
		_ = conn.Close(context.Background())
		tb.Fatalf("%s: %v", sql, err)
	}
	keep(url, conn)
	return value
}

// newQuery is Query in a new session.
func newQuery[T any](tb testing.TB, url, sql string) T {
	tb.Helper()
	conn, err := connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	value, err := query[T](conn, sql, nil)
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return value
}

func query[T any](conn *pgx.Conn, sql string, args []any) (value T, err error) {
	err = conn.QueryRow(context.Background(), sql, args...).Scan(&value)
	return value, err
}

// connect keeps no plans, since the schema may change.
func connect(url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	return pgx.ConnectConfig(context.Background(), config)
}

// mostKept leaves the servers enough connections for others.
const mostKept = 16

// kept are idle connections. The last query's is the last.
var kept struct {
	sync.Mutex
	urls  []string
	conns []*pgx.Conn
}

// takeKept returns nil where none is kept.
func takeKept(url string) *pgx.Conn {
	kept.Lock()
	defer kept.Unlock()
	for i, u := range kept.urls {
		if u == url {
			return removeKept(i)
		}
	}
	return nil
}

func keep(url string, conn *pgx.Conn) {
	kept.Lock()
	kept.urls, kept.conns = append(kept.urls, url), append(kept.conns, conn)
	var oldest *pgx.Conn
	if len(kept.conns) > mostKept {
		oldest = removeKept(0)
	}
	kept.Unlock()
	if oldest != nil {
		_ = oldest.Close(context.Background())
	}
}

// Tests is a package's tests, after which no connection is kept. A check for goroutines that are
// left wants that: pgx reads in the background on a connection that once was slow to write.
type Tests struct{ *testing.M }

// Run runs the tests.
func (m Tests) Run() int {
	code := m.M.Run()
	kept.Lock()
	defer kept.Unlock()
	for _, conn := range kept.conns {
		_ = conn.Close(context.Background())
	}
	kept.urls, kept.conns = nil, nil
	return code
}

func removeKept(i int) *pgx.Conn {
	conn := kept.conns[i]
	kept.urls = append(kept.urls[:i], kept.urls[i+1:]...)
	kept.conns = append(kept.conns[:i], kept.conns[i+1:]...)
	return conn
}
