package stored

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// waiting are all lines, with the attempts that have the keys.
const waiting = `SELECT w.key, w.id, w.lease_id::text, w.attempt_id::text, coalesce(w.data, '{}'),
	NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = w.lease_id AND o.expires_at > clock_timestamp()),
	coalesce(CASE WHEN l.attempt_id IS NOT NULL THEN l.token END, 0), coalesce(l.attempt_id::text, ''),
	l.share_limit IS NOT NULL, coalesce(l.share_limit, 0), CASE WHEN l.share_limit IS NULL THEN (l.lease_id IS NOT NULL)::int ELSE
	(SELECT count(*) FROM locksidecar.shares h WHERE h.namespace = w.namespace AND h.key = w.key) END
FROM locksidecar.waiters w LEFT JOIN locksidecar.locks l
ON l.namespace = w.namespace AND l.key = w.key AND l.lease_id IS NOT NULL
WHERE w.outcome IS NULL ORDER BY w.key, w.id`

// leftovers are what must not be there when all faults are healed and all clients have
// gone. $1 are the pods whose sidecars still run.
const leftovers = `
SELECT 'lock ' || l.key || ' under token ' || l.token, s.instance FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id
	WHERE s.expires_at > clock_timestamp()
UNION ALL SELECT 'share of ' || h.key || ' under token ' || h.token, s.instance FROM locksidecar.shares h JOIN locksidecar.leases s ON s.id = h.lease_id
	WHERE s.expires_at > clock_timestamp()
UNION ALL SELECT 'waiter ' || w.id || ' for ' || w.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.waiters w LEFT JOIN locksidecar.leases s ON s.id = w.lease_id
UNION ALL SELECT 'signal ' || g.kind || ' for ' || g.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.signals g LEFT JOIN locksidecar.leases s ON s.id = g.lease_id
UNION ALL SELECT 'watcher of ' || w.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.watchers w LEFT JOIN locksidecar.leases s ON s.id = w.lease_id
UNION ALL SELECT 'lease ' || s.id || CASE WHEN renewed THEN '' ELSE ', not renewed' END,
	s.instance FROM locksidecar.leases s WHERE s.expires_at > clock_timestamp() AND NOT (s.renewed AND s.pod = ANY($1))
ORDER BY 1`

// Postgres looks into a database.
func Postgres(url string) View { return &postgres{url: url} }

type postgres struct {
	url  string
	conn *pgx.Conn
	// closed is closed when nothing goes on any more on the last connection.
	closed <-chan struct{}
}

// query makes a look, with the connection of the last one if that went well.
func (p *postgres) query(ctx context.Context, read func(context.Context, *pgx.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if p.conn == nil {
		if p.conn, err = pgx.Connect(ctx, p.url); err != nil {
			return err
		}
	}
	if err = read(ctx, p.conn); err != nil {
		p.disconnect(ctx)
	}
	return err
}

func (p *postgres) disconnect(ctx context.Context) {
	if p.conn != nil {
		p.closed = p.conn.PgConn().CleanupDone()
		_ = p.conn.Close(context.WithoutCancel(ctx))
		p.conn = nil
	}
}

// Close also waits for what goes on behind the end of a look that was broken off: the
// server is asked to cancel it.
func (p *postgres) Close() {
	p.disconnect(context.Background())
	if p.closed != nil {
		<-p.closed
	}
}

func (p *postgres) Lines(ctx context.Context) (lines []history.Op, err error) {
	err = p.query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, waiting)
		if err != nil {
			return err
		}
		var data string
		var place history.Place
		line := history.Op{Kind: history.Line, Sidecar: -1}
		into := []any{
			&line.Key, &place.Number, &place.Lease, &place.Attempt, &data, &place.Dead,
			&line.Token, &line.Attempt, &line.Shared, &line.Limit, &line.Holders,
		}
		_, err = pgx.ForEachRow(rows, into, func() error {
			if place.ID, err = caller([]byte(data)); err != nil {
				return err
			}
			if last := len(lines) - 1; last >= 0 && lines[last].Key == line.Key {
				lines[last].Line = append(lines[last].Line, place)
				return nil
			}
			line.Line = []history.Place{place}
			lines = append(lines, line)
			return nil
		})
		return err
	})
	return lines, err
}

func (p *postgres) Left(ctx context.Context, pods []string) (left []string, err error) {
	err = p.query(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, leftovers, pods)
		if err != nil {
			return err
		}
		left, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var what, whose string
			err := row.Scan(&what, &whose)
			return fmt.Sprintf("%s of %s", what, whose), err
		})
		return err
	})
	return left, err
}
