package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
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

// pools are the connections: one is for renewals alone, so that a burst of acquires never lets leases die, and one for the
// mailbox. The rest is for all else.
type pools struct{ main, renewals, mailbox *sql.DB }

func (b *Backend) newPools() pools {
	open := func(most int) *sql.DB {
		db := b.open()
		db.SetMaxOpenConns(most)
		db.SetMaxIdleConns(most)
		db.SetConnMaxIdleTime(idleTime)
		return db
	}
	return pools{main: open(max(1, b.config.MaxConns-2)), renewals: open(1), mailbox: open(1)}
}

// open makes a pool. The library makes spans of its connects and of its queries' first answers, if the context has a recorded one.
// They contain no statement, no error text and no value; our own span has the whole operation.
func (b *Backend) open() *sql.DB {
	to := &connector{b: b}
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

// State is what metrics show of the connections.
func (b *Backend) State() (s metrics.StoreState) {
	for _, db := range []*sql.DB{b.pools.main, b.pools.renewals, b.pools.mailbox} {
		stat := db.Stats()
		s.Used += stat.InUse
		s.Idle += stat.Idle
		s.Max += stat.MaxOpenConnections
		s.Waited += stat.WaitCount
		s.WaitedFor += stat.WaitDuration
	}
	return s
}

// drop closes idle connections, because a session keeps the settings that the server had when it began.
func (p *pools) drop() {
	for _, db := range []*sql.DB{p.main, p.renewals, p.mailbox} {
		most := db.Stats().MaxOpenConnections
		db.SetMaxIdleConns(-1)
		db.SetMaxIdleConns(most)
	}
}

func (p *pools) close() {
	for _, db := range []*sql.DB{p.main, p.renewals, p.mailbox} {
		_ = db.Close()
	}
}

// connector connects to the first host that is not read-only, and that no later one has replaced.
type connector struct {
	b *Backend
	// migrates: it connects for a migration, whose statements are not packets of ours.
	migrates bool
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
func (b *Backend) now() (target, error) {
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
		_, err := conn.ExecContext(ctx, c.b.outdate(), nil)
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
