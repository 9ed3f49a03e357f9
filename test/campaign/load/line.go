package load

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// waiting are all lines, with the attempts that have the keys. A waiter that has an outcome
// waits no more.
const waiting = `SELECT w.key, w.id, w.lease_id::text, w.grant_id::text, coalesce(w.data, '{}'),
	NOT EXISTS (SELECT FROM locksidecar.leases o WHERE o.id = w.lease_id AND o.expires_at > clock_timestamp()),
	coalesce(CASE WHEN l.grant_id IS NOT NULL THEN l.token END, 0), coalesce(l.grant_id::text, ''),
	l.places IS NOT NULL, coalesce(l.places, 0), CASE WHEN l.places IS NULL THEN (l.lease_id IS NOT NULL)::int ELSE
	(SELECT count(*) FROM locksidecar.shares h WHERE h.namespace = w.namespace AND h.key = w.key) END
FROM locksidecar.waiters w LEFT JOIN locksidecar.locks l
ON l.namespace = w.namespace AND l.key = w.key AND l.lease_id IS NOT NULL
WHERE w.outcome IS NULL ORDER BY w.key, w.id`

// Observe notes who waits for what, as the database shows it, every so often and
// until ctx ends. It needs a way to the database that takes no part in the faults, and
// goes on when that is gone for a while, as after a kill of the server. It also notes when
// the machine was slow: a look and its pause took much longer than they should.
func Observe(ctx context.Context, url string, every time.Duration, rec *history.Recorder) {
	o := &observer{rec: rec, noted: make(map[string]history.Op)}
	defer o.leave(ctx)
	for ctx.Err() == nil {
		began := history.Now()
		if o.conn == nil {
			o.conn, _ = pgx.Connect(ctx, url)
		}
		if o.conn != nil && o.look(ctx) != nil {
			o.disconnect(ctx)
		}
		rest(ctx, every)
		if now := history.Now(); now-began > int64(every+slow) {
			rec.Add(history.Op{Kind: history.Slow, Sidecar: -1, Call: began, Return: now})
		}
	}
}

// slow is how much longer a look takes where nobody can rely on the machine.
const slow = 50 * time.Millisecond

type observer struct {
	rec   *history.Recorder
	conn  *pgx.Conn
	noted map[string]history.Op // the last of each key
	// closed is closed when nothing goes on any more on the last connection.
	closed <-chan struct{}
}

func (o *observer) disconnect(ctx context.Context) {
	if o.conn != nil {
		o.closed = o.conn.PgConn().CleanupDone()
		_ = o.conn.Close(context.WithoutCancel(ctx))
		o.conn = nil
	}
}

// leave also waits for what goes on behind the end of a look that was broken off: the
// server is asked to cancel it.
func (o *observer) leave(ctx context.Context) {
	o.disconnect(ctx)
	if o.closed != nil {
		<-o.closed
	}
}

// look notes all lines in which there is an order to see, or a first one that may fit. They are seen at one moment
// between the times that are noted.
func (o *observer) look(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := history.Now()
	rows, err := o.conn.Query(limited, waiting)
	if err != nil {
		return err
	}
	lines := make(map[string]history.Op)
	var data string
	var place history.Place
	line := history.Op{Kind: history.Line, Sidecar: -1, Call: asked}
	into := []any{
		&line.Key, &place.Number, &place.Lease, &place.Attempt, &data, &place.Dead,
		&line.Token, &line.Attempt, &line.Shared, &line.Limit, &line.Holders,
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		var req struct {
			Op string `json:"op"`
		}
		if err := json.Unmarshal([]byte(data), &req); err != nil {
			return err
		}
		place.ID = req.Op
		line.Line = slices.Concat(lines[line.Key].Line, []history.Place{place})
		lines[line.Key] = line
		return nil
	})
	if err != nil {
		return err
	}
	answered := history.Now()
	for _, line := range lines {
		line.Return = answered
		o.note(line)
	}
	return nil
}

// note notes a line that is news, or has not been noted for a second.
func (o *observer) note(op history.Op) {
	last := o.noted[op.Key]
	news := op.Attempt != last.Attempt || op.Holders != last.Holders || !slices.Equal(op.Line, last.Line)
	if len(op.Line) < 2 && !op.Shared || !news && op.Call-last.Call < int64(time.Second) {
		return
	}
	o.noted[op.Key] = op
	o.rec.Add(op)
}
