package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// tries is how often a packet is sent that the server rolled back, or that may be repeated and broke.
	tries = 5
	// rollbackLimit limits the ROLLBACK after a failure. If it fails, the connection is closed, which does the same.
	rollbackLimit = time.Second
)

// results are the results of a packet's statements: rows of columns.
type results [][][][]byte

// packet begins a packet. changes: its transaction may write.
func (b *Server) packet(changes bool) *packet {
	p := &packet{server: *b.server.Load()}
	p.add("end_other")
	p.add("isolation")
	if changes {
		p.add("begin")
	} else {
		p.add("begin_read")
	}
	p.ask("guard", b.latest.began.Load())
	return p
}

// read sends a packet that changes nothing, and repeats it if the connection broke. The guard's result is left out.
func (b *Server) read(ctx context.Context, op string, fill func(*packet)) (results, error) {
	found, _, err := b.readIn(ctx, op, fill)
	return found, err
}

// readIn does the same, and says in which state of the server.
func (b *Server) readIn(ctx context.Context, op string, fill func(*packet)) (results, state, error) {
	return b.request(ctx, b.main, op, false, true, fill)
}

// write sends a transaction once, unless the server rolled it back.
func (b *Server) write(ctx context.Context, op string, fill func(*packet)) (results, error) {
	found, _, err := b.writeIn(ctx, op, fill)
	return found, err
}

// writeIn does the same, and says in which state of the server.
func (b *Server) writeIn(ctx context.Context, op string, fill func(*packet)) (results, state, error) {
	return b.request(ctx, b.main, op, true, false, fill)
}

// request sends a packet with its guard. repeat: it may be carried out several times.
func (b *Server) request(ctx context.Context, pool *sql.DB, op string, changes, repeat bool, fill func(*packet)) (results, state, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	b.used.Store(true)
	if err := b.Ready(); err != nil {
		return nil, state{}, cas.Failed(op, err, false)
	}
	p := b.packet(changes)
	fill(p)
	p.add("commit")
	b.addWake(p)
	for try := 1; ; try++ {
		found, sent, err := b.send(ctx, pool, op, p)
		var now state
		if err == nil {
			now, err = b.readGuard(found)
		}
		if err == nil {
			b.wake(p.others()...)
			return found[1:], now, nil
		}
		interrupted := number(err) == errorInterrupted && len(found) < p.before // by an administrator
		rolledBack := again(err) || interrupted
		broken := number(err) == 0 && ctx.Err() == nil
		locked := rolledBack && p.locks && len(found) == 1 // the record's lock is the second result
		switch {
		case locked:
			return nil, now, cas.Failed(op, errRowLocked, false)
		case try < tries && (rolledBack || repeat && broken):
			if cas.Pause(ctx, rand.N(time.Millisecond<<try)) { //nolint:gosec // spreads load
				continue
			}
		case rolledBack:
			err = errors.Join(errRowLocked, err)
		}
		if suspicious(err) {
			b.Doubt()
		}
		unknown := changes && sent && !rolledBack && (number(err) == 0 || len(found) >= p.before)
		if unknown {
			b.wake(p.to...) // their letters may be there
		}
		return nil, now, cas.Failed(op, explain(err), unknown)
	}
}

// send sends a packet, with its span and its metrics. It returns the results that came, also with an error. sent: the packet may
// have left this process.
func (b *Server) send(ctx context.Context, pool *sql.DB, op string, p *packet) (found results, sent bool, err error) {
	name := "mysql_" + op
	ctx, end := b.span(ctx, name)
	began := time.Now()
	defer func() {
		end(err)
		b.config.Metrics.Statement(ctx, name, time.Since(began), err)
	}()
	for range tries {
		var conn *sql.Conn
		if conn, err = pool.Conn(ctx); err != nil {
			return nil, false, err
		}
		found, err = exchange(ctx, conn, string(p.text))
		if p.wakes && len(found) > p.before { // it is committed
			if !b.woke(err) {
				b.wake(p.to...)
			}
			found, err = found[:p.before], nil
		}
		if number(err) != 0 {
			release(conn)
		}
		_ = conn.Close() // gives it back to the pool, or drops it if it is broken
		if !errors.Is(err, driver.ErrBadConn) {
			return found, true, err
		}
	}
	return nil, false, err // the driver says that it has sent nothing
}

// exchange sends a packet and reads all results. It asks the driver itself, because package sql starts a goroutine for each query, and
// copies each value twice.
func exchange(ctx context.Context, conn *sql.Conn, text string) (found results, err error) {
	err = conn.Raw(func(c any) (err error) {
		found, err = ask(ctx, c.(session), text)
		return err
	})
	return found, err
}

func ask(ctx context.Context, conn session, text string) (found results, err error) {
	rows, err := conn.QueryContext(ctx, text, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for {
		if n := len(rows.Columns()); n > 0 {
			set, err := readSet(rows, n)
			if err != nil {
				return found, err
			}
			found = append(found, set)
		}
		next, several := rows.(driver.RowsNextResultSet)
		if !several {
			return found, nil
		}
		if err := next.NextResultSet(); err != nil {
			return found, ended(err)
		}
	}
}

// readSet reads a result. Its values are kept in few arrays, because the driver uses its own again.
func readSet(rows driver.Rows, columns int) (set [][][]byte, err error) {
	values := make([]driver.Value, columns)
	var cells [][]byte
	text := make([]byte, 0, 64*columns)
	for {
		if err := rows.Next(values); err != nil {
			return set, ended(err)
		}
		for _, value := range values {
			from := len(text)
			switch v := value.(type) {
			case nil:
				cells = append(cells, nil)
				continue
			case []byte:
				text = append(text, v...)
			case int64:
				text = strconv.AppendInt(text, v, 10)
			case uint64:
				text = strconv.AppendUint(text, v, 10)
			default:
				return nil, errFormat
			}
			cells = append(cells, text[from:len(text):len(text)])
		}
		set = append(set, cells[len(cells)-columns:len(cells):len(cells)])
	}
}

// ended is the error of a reader, without that of its end.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// release ends the transaction of a packet that failed, so that its rows are not locked longer.
func release(conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
	defer cancel()
	if _, err := conn.ExecContext(ctx, statement("end_other")); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
}

// harmless describes an error without the server's text, which may contain values.
func harmless(err error) string {
	if n := number(err); n != 0 {
		return fmt.Sprintf("error %d of the server", n)
	}
	return err.Error()
}

// leaseIDs reads a column of ids.
func leaseIDs(rows [][][]byte) ([]store.LeaseID, error) {
	var ids []store.LeaseID
	for _, row := range rows {
		if len(row[0]) != 16 {
			return nil, errFormat
		}
		ids = append(ids, store.LeaseID(row[0]))
	}
	return ids, nil
}
