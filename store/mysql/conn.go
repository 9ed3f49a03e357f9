package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-sql-driver/mysql"
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
		db := sql.OpenDB(&connector{b})
		db.SetMaxOpenConns(most)
		db.SetMaxIdleConns(most)
		db.SetConnMaxIdleTime(idleTime)
		return db
	}
	return pools{main: open(max(1, b.config.MaxConns-2)), renewals: open(1), mailbox: open(1)}
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

// connector connects to the first host that is not read-only.
type connector struct{ b *Backend }

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
		conn, err := connect(limited, t.driverConfig(host), len(t.hosts) > 1)
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

func connect(ctx context.Context, config *mysql.Config, primary bool) (driver.Conn, error) {
	config.Params = map[string]string{"innodb_lock_wait_timeout": lockWait}
	dialer, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	conn, err := dialer.Connect(ctx)
	if err != nil || !primary {
		return conn, err
	}
	readOnly, err := isReadOnly(ctx, conn.(driver.QueryerContext))
	if err == nil && readOnly {
		err = errReplica
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func isReadOnly(ctx context.Context, conn driver.QueryerContext) (bool, error) {
	rows, err := conn.QueryContext(ctx, "SELECT @@global.read_only", nil)
	if err != nil {
		return false, err
	}
	values := make([]driver.Value, 1)
	err = rows.Next(values)
	if closed := rows.Close(); err == nil || errors.Is(err, io.EOF) {
		err = errors.Join(err, closed)
	}
	return fmt.Sprint(values[0]) == "1", err
}
