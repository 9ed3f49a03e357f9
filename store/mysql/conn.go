package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/XSAM/otelsql"
	"github.com/go-sql-driver/mysql"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
)

const (
	// idleTime is after what time an idle connection is closed.
	idleTime = 30 * time.Second
	// lockWait is how long a statement waits for the row of a lease, in seconds. A pooler may lose this setting. Then a
	// statement waits until the operation's timeout.
	lockWait = "2"
)

// ownPools are the connections of one instance. One is for renewals alone, so that neither a burst of acquires nor a locked letter lets leases die, and
// so that a lease whose row somebody keeps locked lets only this instance wait. One is for the mailbox (looks, and the deletion of letters), and in one
// the instance sleeps. Everything else shares the server's pool main.
type ownPools struct {
	renewals, mailbox, sleep *sql.DB
	// greeted is the number by which the server has greeted the last connection for the sleep.
	greeted *atomic.Uint32
}

func (p *ownPools) all() []*sql.DB { return []*sql.DB{p.renewals, p.mailbox, p.sleep} }

func (b *Server) newOwnPools() ownPools {
	greeted := &atomic.Uint32{}
	return ownPools{renewals: b.pool(1, nil), mailbox: b.pool(1, nil), sleep: b.pool(1, greeted), greeted: greeted}
}

// pool makes a pool with at most so many connections.
func (b *Server) pool(most int, greeted *atomic.Uint32) *sql.DB {
	db := b.open(&connector{b: b, greeted: greeted})
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	db.SetConnMaxIdleTime(idleTime)
	return db
}

// open makes a pool. The library makes spans of its connects and of its queries' first answers, if the context has a recorded one.
// They contain no statement, no error text and no value; our own span has the whole operation.
func (b *Server) open(to *connector) *sql.DB {
	if b.config.Tracers == nil {
		return sql.OpenDB(to)
	}
	return otelsql.OpenDB(to,
		otelsql.WithTracerProvider(b.config.Tracers),
		otelsql.WithMeterProvider(noop.NewMeterProvider()), // metrics are made elsewhere
		otelsql.WithAttributes(attribute.String("db.system.name", "mysql")),
		otelsql.WithSpanOptions(otelsql.SpanOptions{
			DisableQuery: true, OmitRows: true, OmitConnResetSession: true, OmitConnPrepare: true,
			RecordError: func(error) bool { return false }, // its text may contain values
			SpanFilter: func(ctx context.Context, _ otelsql.Method, _ string, _ []driver.NamedValue) bool {
				return tracing.Recorded(ctx)
			},
		}))
}

// allPools are the shared connections, and those of the instances that run.
func (b *Server) allPools() []*sql.DB {
	all := []*sql.DB{b.main}
	for _, view := range b.running() {
		all = append(all, view.own.all()...)
	}
	return all
}

// State is what metrics show of the connections. Of several instances, the one that gets its letters best says how.
func (b *Server) State() (s metrics.StoreState) {
	for _, db := range b.allPools() {
		stat := db.Stats()
		s.Used += stat.InUse
		s.Idle += stat.Idle
		s.Max += stat.MaxOpenConnections
		s.Waited += stat.WaitCount
		s.WaitedFor += stat.WaitDuration
	}
	best := 0
	for _, view := range b.running() {
		best = max(best, slices.Index(listenerStates, view.way.now().state))
	}
	s.Listener = listenerStates[best]
	return s
}

// listenerStates are those of a way, from the worst to the best.
var listenerStates = []string{"off", "polling", "connecting", "listening"}

// dropConnections closes idle connections, because a session keeps the settings that the server had when it began.
func (b *Server) dropConnections() {
	for _, db := range b.allPools() {
		most := db.Stats().MaxOpenConnections
		db.SetMaxIdleConns(-1)
		db.SetMaxIdleConns(most)
	}
}

func closeAll(pools []*sql.DB) {
	for _, db := range pools {
		_ = db.Close()
	}
}

// connector connects to the first host that is not read-only, and that no later one has replaced.
type connector struct {
	b *Server
	// migrates: it connects for a migration, whose statements are not packets of ours.
	migrates bool
	// greeted, if it is not nil, gets the number by which the server greets each connection.
	greeted *atomic.Uint32
}

// Driver implements [driver.Connector].
func (*connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	t, err := c.b.now()
	if err != nil {
		return nil, err
	}
	var failed error
	for i, host := range t.hosts {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok { // a host that hangs leaves time for the others
			limited, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(t.hosts)-i))
		}
		conn, err := c.connect(limited, t.driverConfig(host), len(t.hosts) > 1)
		cancel()
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", host, err))
	}
	return nil, failed
}

// now is the target of the URL as it is now.
func (b *Server) now() (target, error) {
	if b.config.Again == nil {
		return b.target, nil
	}
	raw, err := b.config.Again()
	if err != nil {
		return target{}, err
	}
	return parseURL(raw)
}

var errReplica = errors.New("the server is read-only")

func (c *connector) connect(ctx context.Context, config *mysql.Config, choose bool) (driver.Conn, error) {
	config.Params = map[string]string{"innodb_lock_wait_timeout": lockWait}
	if c.migrates {
		config.Params["autocommit"] = "1"
	}
	if c.greeted != nil {
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &greeting{TCPConn: conn.(*net.TCPConn), number: c.greeted}, nil
		}
	}
	dialer, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	conn, err := dialer.Connect(ctx)
	if err != nil || !choose {
		return conn, err
	}
	if err := c.isPrimary(ctx, conn.(session)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// greeting reads the number of the connection in the server's greeting: its version, a text that ends with a zero, and the number.
// A proxy greets with a number of its own.
type greeting struct {
	*net.TCPConn
	number *atomic.Uint32
	begin  []byte
	done   bool
}

func (g *greeting) Read(p []byte) (int, error) {
	const head, longest = 5, 256 // a packet's head and the protocol's version; more is no greeting
	n, err := g.TCPConn.Read(p)
	if g.done {
		return n, err
	}
	g.begin = append(g.begin, p[:n]...)
	if end := bytes.IndexByte(g.begin[min(head, len(g.begin)):], 0); end >= 0 && len(g.begin) >= head+end+1+4 {
		g.number.Store(binary.LittleEndian.Uint32(g.begin[head+end+1:]))
		g.done = true
	}
	if g.done = g.done || len(g.begin) > longest; g.done {
		g.begin = nil
	}
	return n, err
}

// session is a connection of the driver.
type session interface {
	driver.QueryerContext
	driver.ExecerContext
}

func (c *connector) isPrimary(ctx context.Context, conn session) error {
	readOnly, err := oneNumber(ctx, conn, "SELECT @@global.read_only")
	switch {
	case err != nil:
		return err
	case readOnly == 1:
		return errReplica
	}
	latest := c.b.latest.began.Load()
	if latest == 0 {
		return nil // this instance has seen no server yet
	}
	began, err := oneNumber(ctx, conn, statement("began")+"; "+statement("end_other"))
	switch {
	case err == nil && began > 0 && began < latest: // 0: it has never been used
		_, err := conn.ExecContext(ctx, string(c.b.outdate().text), nil)
		return c.b.oldPrimary(err)
	case number(err) == errorNoTable:
		return nil // the check says what is missing
	}
	return err
}

// oneNumber asks for a number.
func oneNumber(ctx context.Context, conn driver.QueryerContext, statement string) (n int64, err error) {
	rows, err := conn.QueryContext(ctx, statement, nil)
	if err != nil {
		return 0, err
	}
	values := make([]driver.Value, 1)
	err = rows.Next(values)
	if closed := rows.Close(); err == nil || errors.Is(err, io.EOF) {
		err = errors.Join(err, closed)
	}
	switch v := values[0].(type) {
	case int64:
		return v, err
	case []byte:
		n, parsed := strconv.ParseInt(string(v), 10, 64)
		return n, errors.Join(err, parsed)
	}
	return 0, errors.Join(err, errFormat)
}
